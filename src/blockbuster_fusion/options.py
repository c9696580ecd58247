"""Options of the command line that several commands have, and how their values are read."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.rules.sets import RULE_SETS

PROGRAM = "an example's name (see `blockbuster list`), or file.py:function"

EMIT_EXAMPLE = """\
A function of a file says in its annotations which axes its arrays have:

    def scores(Q: "M D", K: "N D"):
        return Q @ K.T

example:
    blockbuster emit attention --size D=64 --size L=64 -o attention.c
"""
BENCH_EXAMPLE = """\
A function of a file says in its annotations which axes its arrays have:

    def scores(Q: "M D", K: "N D"):
        return Q @ K.T

example:
    blockbuster bench attention --size M=2048 --size N=2048 --threads 1
"""


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return int(text)


def seconds(text: str) -> float:
    """A time that is not 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return number


def numbers(option: str, pairs: Sequence[str]) -> dict[str, int]:
    """What is given as `NAME=NUMBER`: sizes, which may be 0, or tiles, which may not."""
    found: dict[str, int] = {}
    least, kind = (1, "a positive whole number") if option == "--tile" else (0, "a whole number")
    for pair in pairs:
        name, _, number = pair.partition("=")
        if not name or not number.isdecimal() or int(number) < least:
            message = f"{option} {pair}: write it as NAME=NUMBER, with {kind}"
            raise BlockbusterError(message=message)
        found[name] = int(number)
    return found


def add_rules(parser: argparse.ArgumentParser, default: str) -> None:
    known, text = sorted(RULE_SETS), "rule set (default: %(default)s)"
    parser.add_argument("--rules", default=default, choices=known, help=text)


def add_target(parser: argparse.ArgumentParser) -> None:
    text = "cpu is C, cuda is Triton (default: %(default)s)"
    parser.add_argument("--target", default="cpu", choices=["cpu", "cuda"], help=text)


def add_choices(parser: argparse.ArgumentParser, sizes: str) -> None:
    """What can be chosen of a compiled program."""
    text = "which one, counted from 1 (default: the one with the least estimated time)"
    parser.add_argument("--snapshot", type=int, metavar="N", help=text)
    text = "a tile: M=64 (default: what fits into local memory)"
    parser.add_argument("--tile", metavar="D=N", action="append", default=[], help=text)
    parser.add_argument("--size", metavar="S=N", action="append", default=[], help=sizes)
    dtypes = ["float32", "bfloat16", "float16"]
    text = "how float32 arrays are stored (default: float32)"
    parser.add_argument("--dtype", choices=dtypes, help=text)


def snapshot_index(given: int | None) -> int | None:
    """Snapshots are counted from 1 on the command line, and from 0 in Python."""
    if given is None:
        return None
    if given < 1:
        raise BlockbusterError(message=f"snapshot {given}: they are numbered from 1")
    return given - 1


def check_writable(file: Path) -> None:
    """Fails where a file cannot be written: now, and not when all is measured."""
    is_new = not file.exists()
    with file.open("a"):
        pass
    if is_new:
        file.unlink()
