"""`blockbuster explore`: writes a page that shows every step from a program to its kernels."""

import argparse
from pathlib import Path

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import (
    FUNCTION,
    PROGRAM,
    add_rules,
    add_sizes,
    check_writable,
    given_sizes,
)
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.explorer.exploration import explore_program
from blockbuster_fusion.naming import word

EXAMPLE = f"""\
{FUNCTION}
The page is one file that needs no network. Its address names a step: attention.html#step-7.

examples:
    blockbuster explore attention
    blockbuster explore program.py:scores -o scores.html --size M=4096
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    text = "the page that is written (default: the program's name, .html)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    text = "compile every snapshot and measure it on this CPU"
    parser.add_argument("--measure", action="store_true", help=text)
    add_rules(parser)
    add_sizes(parser, "a length, for the figures: M=1024 (default: as for bench)")


def _run(options: argparse.Namespace) -> None:
    program = find_program(options.program)
    file = options.output or Path(f"{word(program.name)}.html")
    check_writable(file)
    sizes = given_sizes(lower(program), options.size)
    made = explore_program(program, sizes=sizes, rules=options.rules, measure=options.measure)
    print(f"written: {made.save(file)}")


COMMAND = Command(
    "explore", "a page with every step, from a program to its kernels", _run, _add_options, EXAMPLE
)
