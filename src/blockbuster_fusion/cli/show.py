"""`blockbuster show`: prints the unfused block program of a program."""

import argparse

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import PROGRAM
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.text import to_text


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    parser.add_argument("--text", action="store_true", help="the text form, which loads again")
    parser.add_argument("--lock", action="store_true", help="reductions in parallel, with a lock")


def _run(options: argparse.Namespace) -> None:
    graph = lower(find_program(options.program))
    if options.text:
        print(to_text(graph), end="")
    else:
        print(show(graph, reductions="lock" if options.lock else "serial"), end="")


COMMAND = Command("show", "print a program's block program, unfused", _run, _add_options)
