"""Options that several commands share, and the functions that read their values."""

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from blockbuster_fusion.errors import BadExtent, BlockbusterError, WrongKind
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.tiling import given_extents
from blockbuster_fusion.messages import complain
from blockbuster_fusion.rules.sets import RULE_SETS

PROGRAM = "an example's name (see `blockbuster list`), or file.py:function"

FUNCTION = """\
A function of a file says in its annotations which axes its arrays have:

    def scores(Q: "M D", K: "N D"):
        return Q @ K.T
"""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence with the program's name in front."""

    def error(self, message: str) -> NoReturn:
        complain(f"{message}; see `{self.prog} --help`")
        raise SystemExit(2)


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


def numbers(option: str, given: Sequence[str]) -> dict[str, int]:
    """Pairs `NAME=NUMBER`, several after one another or with commas.

    A size may be 0, and a tile may not.
    """
    found: dict[str, int] = {}
    least, kind = (1, "a positive whole number") if option == "--tile" else (0, "a whole number")
    for pair in (pair for pairs in given for pair in pairs.split(",")):
        name, _, number = pair.partition("=")
        if not name or not number.isdecimal() or int(number) < least:
            message = f"{option} {pair}: write it as NAME=NUMBER, with {kind}"
            raise BlockbusterError(message=message)
        if found.setdefault(name, int(number)) != int(number):
            message = f"{option} {pair}: {name} is given as {found[name]} as well"
            raise BlockbusterError(message=message)
    return found


def given_sizes(graph: Graph, given: Sequence[str]) -> dict[str, int]:
    """The sizes of a program that `--size` gives, by axis or by symbol; the result is by symbol."""
    pairs = numbers("--size", given)
    try:
        extents = given_extents({dim.axis for dim in graph.dims}, pairs)
    except BadExtent as error:
        name = error.details["name"]
        message = f"--size {name}={pairs[str(name)]}: {error.details['problem']}"
        raise BlockbusterError(message=message) from error
    return {symbol.name: length for symbol, length in extents.sizes.items()}


def all_sizes(graph: Graph, given: Sequence[str]) -> dict[str, int]:
    """Every symbolic size of a program: those that are given, 4 for batches, 512 for the others."""
    extents = {dim.axis.extent: dim for dim in sorted(graph.dims, key=lambda dim: dim.label)}
    usual = {
        extent.name: 512 if dim.packed else 4
        for extent, dim in extents.items()
        if isinstance(extent, Symbol)
    }
    return usual | given_sizes(graph, given)


def add_rules(parser: argparse.ArgumentParser) -> None:
    known, text = sorted(RULE_SETS), "rule set (default: %(default)s)"
    parser.add_argument("--rules", default="extended", choices=known, help=text)


def add_sizes(parser: argparse.ArgumentParser, text: str) -> None:
    """Lengths of axes, spelt alike for every command."""
    text = f"{text}; by axis (M) or symbol (MM)"
    parser.add_argument("--size", metavar="M=N", action="append", default=[], help=text)


def add_tiles(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--tile", metavar="M=N", action="append", default=[], help=text)


def add_target(parser: argparse.ArgumentParser) -> None:
    text = "cpu is C, cuda is Triton (default: %(default)s)"
    parser.add_argument("--target", default="cpu", choices=["cpu", "cuda"], help=text)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Options of a compiled program."""
    text = "which one, counted from 1 (default: the one with the least estimated time)"
    parser.add_argument("--snapshot", type=int, metavar="N", help=text)
    add_tiles(parser, "a tile: M=64 (default: what fits into local memory)")
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


@contextmanager
def snapshots_from_1(given: int | None) -> Iterator[None]:
    """Numbers the snapshots of an error message from 1, as the command line does."""
    try:
        yield
    except WrongKind as error:
        count = error.details.get("snapshots")
        if count is None:
            raise
        there = "there is 1" if count == 1 else f"there are {count}"
        message = f"snapshot {given}: {there}, numbered from 1"
        raise BlockbusterError(message=message) from error


def check_writable(file: Path) -> None:
    """Fails where a file cannot be written: now, and not when all is measured."""
    is_new = not file.exists()
    with file.open("a"):
        pass
    if is_new:
        file.unlink()
