"""`blockbuster bench`: times a compiled program against PyTorch."""

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
    check_writable,
    given_sizes,
    numbers,
    positive,
    seconds,
    snapshot_index,
    snapshots_from_1,
)
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.tools.bench import LENGTHS, bench

EXAMPLE = f"""\
{FUNCTION}
example:
    blockbuster bench attention --size M=2048,N=2048 --threads 1
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    add_target(parser)
    add_rules(parser)
    add_choices(parser)
    usual = " or ".join(f"{n} (batches {b}) on {name}" for name, (b, n) in LENGTHS.items())
    add_sizes(parser, f"a length: M=1024 (default: {usual}; 64 for the width of a head)")
    text = "for the CPU (default: as many as there are)"
    parser.add_argument("--threads", type=positive, metavar="N", help=text)
    text = "how long each contender is run (default: %(default)s)"
    parser.add_argument("--seconds", type=seconds, default=2.0, metavar="S", help=text)
    text = "write the result as JSON, snapshots counted from 1 (default: not written)"
    parser.add_argument("--json", metavar="FILE", help=text)


def _run(options: argparse.Namespace) -> None:
    if options.json:
        check_writable(Path(options.json))
    program = find_program(options.program)
    with snapshots_from_1(options.snapshot):
        result = bench(
            program,
            target=options.target,
            sizes=given_sizes(lower(program), options.size),
            dtype=options.dtype,
            rules=options.rules,
            threads=options.threads,
            snapshot=snapshot_index(options.snapshot),
            tiles=numbers("--tile", options.tile),
            seconds=options.seconds,
        )
    print(result)
    print(f"  {', '.join(f'{name} {number}' for name, number in result.versions.items())}")
    if options.json:
        Path(options.json).write_text(result.as_json() + "\n", encoding="utf-8")
        print(f"  written to {options.json}")


COMMAND = Command("bench", "a program compiled, against PyTorch", _run, _add_options, EXAMPLE)
