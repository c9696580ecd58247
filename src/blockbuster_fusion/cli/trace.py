"""`blockbuster trace`: fuses a program and prints every step."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import (
    PROGRAM,
    add_rules,
    add_sizes,
    add_tiles,
    all_sizes,
    numbers,
)
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.fusion.trace import Trace
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.safety.fuse import fuse
from blockbuster_fusion.safety.pipeline import make_safe


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", help=PROGRAM)
    add_rules(parser)
    parser.add_argument(
        "--steps", choices=["all", "last", "none"], default="all", help="which listings to print"
    )
    add_sizes(parser, "a length, for traffic: M=512 (default: 512, batch 4)")
    add_tiles(parser, "a tile, for traffic: M=64")
    parser.add_argument("--save", metavar="FILE", help="write the trace as JSON")
    parser.add_argument("--load", metavar="FILE", help="print a saved trace instead of a program's")


def _run(options: argparse.Namespace) -> None:
    title, trace = _fused(options)
    sizes: Mapping[str, int] = {}
    tiles: dict[Dim | str, int] = dict(numbers("--tile", options.tile).items())
    if options.size or tiles:
        sizes = all_sizes(trace.initial, options.size)
        meter(trace.initial, sizes, tiles)  # errors in sizes come before the first listing
    print(title)
    _print_program("initial block program", trace.initial, options.steps == "all", sizes, tiles)
    if 0 in trace.snapshots:
        print("snapshot 1\n")
    for step in trace:
        listed = options.steps == "all" or (options.steps == "last" and step.index == len(trace))
        _print_program(str(step), step.after, listed, sizes, trace.tiles_after(step.index, tiles))
        if step.index in trace.snapshots:
            print(f"snapshot {trace.snapshots.index(step.index) + 1}\n")
    safe = make_safe(trace.program_after(len(trace)))
    for choice in safe.choices:
        print(f"made safe: {choice}")
    if safe.choices:
        tiles = trace.tiles_after(len(trace), tiles)
        _print_program("numerically safe", safe.graph, options.steps != "none", sizes, tiles)
    if options.save:
        trace.save(options.save)
        print(f"saved to {Path(options.save)}")


def _fused(options: argparse.Namespace) -> tuple[str, Trace]:
    """A title, and the trace of a program or a saved one."""
    if (options.program is None) == (options.load is None):
        raise BlockbusterError(message="trace: name a program, or a saved trace with --load")
    if options.load:
        trace = Trace.load(options.load)
        return f"{options.load}: {len(trace)} steps by the {trace.rules.name} rules\n", trace
    program = find_program(options.program)
    return f"{program}\n", fuse(lower(program), options.rules).trace


def _print_program(
    title: str, graph: Graph, listed: bool, sizes: Mapping[str, int], tiles: Mapping[Dim | str, int]
) -> None:
    print(f"{title}, {len(buffered(graph))} interior buffered edges")
    if sizes:
        print(_indented(str(meter(graph, sizes, tiles))))
    if listed:
        print(_indented(show(graph)) + "\n")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


COMMAND = Command("trace", "fuse a program and print every step", _run, _add_options)
