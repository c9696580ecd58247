"""`blockbuster explore`: writes a page of a program's every step, or of a model's whole plan."""

import argparse
from pathlib import Path

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.models import MODEL_FUNCTION, explained
from blockbuster_fusion.cli.options import (
    FUNCTION,
    PROGRAM,
    add_rules,
    add_sizes,
    check_writable,
    given_sizes,
)
from blockbuster_fusion.cli.programs import Model, find_model
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.explorer.exploration import Exploration, explore_program
from blockbuster_fusion.naming import word
from blockbuster_fusion.tools import examples

EXAMPLE = f"""\
{FUNCTION}
{MODEL_FUNCTION}
The page is one file that needs no network. Its address names a step: attention.html#step-7.

examples:
    blockbuster explore attention
    blockbuster explore program.py:scores -o scores.html --size M=4096
    blockbuster explore model.py:make --measure -o model.html
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    text = "the page that is written (default: the program's name, .html)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    text = "measure every snapshot of a program on this CPU, or every step of a model"
    parser.add_argument("--measure", action="store_true", help=text)
    add_rules(parser)
    add_sizes(parser, "a length, for the figures: M=1024 (default: as for bench)")


def _run(options: argparse.Namespace) -> None:
    found = find_model(options.program)
    name = found.name if isinstance(found, ArrayProgram) else options.program.rpartition(":")[2]
    file = options.output or Path(f"{word(name)}.html")
    check_writable(file)
    made = _program(found, options) if isinstance(found, ArrayProgram) else _model(found, options)
    print(f"written: {made.save(file)}")


def _program(program: ArrayProgram, options: argparse.Namespace) -> Exploration:
    sizes = given_sizes(lower(program), options.size)
    given = {"rules": options.rules, "measure": options.measure}
    return explore_program(program, sizes=sizes, note=examples.about(options.program), **given)


def _model(found: Model, options: argparse.Namespace) -> Exploration:
    if options.size:
        message = "explore: --size is for programs; the inputs of a model have their sizes"
        raise BlockbusterError(message=message)
    explanation = explained(found, measure=options.measure)
    from blockbuster_fusion.explorer.model import explored  # it needs PyTorch

    return explored(explanation)


COMMAND = Command(
    "explore", "a page of a program's every step, or of a model", _run, _add_options, EXAMPLE
)
