"""`blockbuster explain`: the time, bytes and reason of each step of a PyTorch model."""

import argparse
from pathlib import Path

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.models import MODEL_FUNCTION, explained
from blockbuster_fusion.cli.options import check_writable
from blockbuster_fusion.cli.programs import find_model
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.report.save import printer

EXAMPLE = f"""\
{MODEL_FUNCTION}
examples:
    blockbuster explain model.py:make
    blockbuster explain model.py:make --measure -o model.html
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="file.py:function, which returns a model and its inputs")
    text = "measure the time of every step; else those of kernels are predicted"
    parser.add_argument("--measure", action="store_true", help=text)
    text = "write it to a file that ends in .txt, .html or .json"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)


def _run(options: argparse.Namespace) -> None:
    if options.output is not None:
        printer(options.output)  # says what is wrong, before anything is compiled
        check_writable(options.output)
    found = find_model(options.model)
    if isinstance(found, ArrayProgram):
        message = f"{options.model}: it is an array program; `blockbuster plan` tells of these"
        raise BlockbusterError(message=message)
    made = explained(found, measure=options.measure)
    print(made)
    if options.output is not None:
        made.save(options.output)
        print(f"\nsaved to {options.output}")


COMMAND = Command("explain", "what became of each operator of a model", _run, _add_options, EXAMPLE)
