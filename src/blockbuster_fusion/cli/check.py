"""`blockbuster check`: compares a program's snapshots with a careful program."""

import argparse

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import PROGRAM, add_rules
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.tools.check.judge import check


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    add_rules(parser)
    dtypes = ["float32", "bfloat16", "float16"]
    parser.add_argument("--dtype", default="float32", choices=dtypes, help="how lists are stored")


def _run(options: argparse.Namespace) -> None:
    program = find_program(options.program)
    report = check(program, dtype=options.dtype, rules=options.rules)
    print(report)
    if not report.ok:
        raise BlockbusterError(message="check: a snapshot is less exact than a careful program")


COMMAND = Command("check", "how exact a program's snapshots are", _run, _add_options)
