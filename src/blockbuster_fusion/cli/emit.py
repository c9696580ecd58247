"""`blockbuster emit`: writes a program's kernels as a standalone file."""

import argparse
from pathlib import Path

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import (
    FUNCTION,
    PROGRAM,
    add_choices,
    add_rules,
    add_sizes,
    add_target,
    given_sizes,
    numbers,
    snapshot_index,
    snapshots_from_1,
)
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.tools.emit import emit

EXAMPLE = f"""\
{FUNCTION}
example (heads of known width make it Flash Attention):
    blockbuster emit attention --size D=64,L=64 -o attention.c
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    add_target(parser)
    add_rules(parser)
    add_choices(parser)
    add_sizes(parser, "a size that is fixed: D=64 (default: sizes are arguments)")
    text = "where to (default: printed); a C file gets a header of the same name"
    parser.add_argument("-o", "--output", metavar="FILE", help=text)
    parser.add_argument("--header", action="store_true", help="the header of the C file alone")


def _run(options: argparse.Namespace) -> None:
    if options.header and options.target != "cpu":
        raise BlockbusterError(message="emit: --header goes with --target cpu only")
    file = None if options.output is None else Path(options.output)
    if file is not None and file.suffix == ".h":
        message = f"emit: {file} is a header's name: name the C file, and {file.name} is beside it"
        raise BlockbusterError(message=message)
    program = find_program(options.program)
    with snapshots_from_1(options.snapshot):
        emitted = emit(
            program,
            target=options.target,
            snapshot=snapshot_index(options.snapshot),
            tiles=numbers("--tile", options.tile),
            sizes=given_sizes(lower(program), options.size),
            dtype=options.dtype,
            rules=options.rules,
            file=options.output,
        )
    if file is None:
        print(emitted.header if options.header else emitted.source, end="")
        return
    written = {} if options.header else {file: emitted.source}
    if emitted.header is not None:
        written[file.with_suffix(".h")] = emitted.header
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    print(f"written to {' and '.join(map(str, written))}")


COMMAND = Command(
    "emit", "write a program's kernels as a standalone file", _run, _add_options, EXAMPLE
)
