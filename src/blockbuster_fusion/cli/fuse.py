"""`blockbuster fuse`: prints the snapshots of a program, and why it does not fuse further."""

import argparse
from collections.abc import Mapping, Sequence

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
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.fusion.pareto import Alternative, alternatives, tried_sets, unit_sets
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.safety.fuse import SafeFusion, fuse


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help=PROGRAM)
    add_rules(parser)
    parser.add_argument(
        "--unit",
        metavar="D",
        action="append",
        default=[],
        help="an axis that has one block, or several: D,K",
    )
    parser.add_argument(
        "--pareto", action="store_true", help="every snapshot for every set of unit dims, measured"
    )
    parser.add_argument("--raw", action="store_true", help="as the rules made it, not made safe")
    parser.add_argument("--all", action="store_true", help="with --pareto: the dominated ones too")
    add_sizes(parser, "with --pareto, a length: M=512 (default: 512, batch 4)")
    add_tiles(parser, "with --pareto, a tile: M=64")


def _run(options: argparse.Namespace) -> None:
    graph = lower(find_program(options.program))
    tiles: dict[Dim | str, int] = dict(numbers("--tile", options.tile).items())
    _check_modes(options)
    if options.pareto:
        _print_pareto(graph, options, tiles)
    else:
        _print_snapshots(graph, options)


def _check_modes(options: argparse.Namespace) -> None:
    """Refuses options that belong to the other mode."""
    measured = [name for name in ("all", "size", "tile") if getattr(options, name)]
    printed = [name for name in ("unit", "raw") if getattr(options, name)]
    if measured and not options.pareto:
        raise BlockbusterError(message=f"fuse: --{measured[0]} goes with --pareto only")
    if printed and options.pareto:
        message = f"fuse: --{printed[0]} does not go with --pareto, which tries every set of dims"
        raise BlockbusterError(message=message)


def _print_snapshots(graph: Graph, options: argparse.Namespace) -> None:
    unit = [name for given in options.unit for name in given.split(",")]
    fusion = fuse(graph, options.rules, unit=unit)
    for number, (raw, safe) in enumerate(zip(fusion.fused, fusion.snapshots, strict=True)):
        counts = len(buffered(raw)), len(buffered(safe))
        also = f" ({counts[1]} when made safe)" if counts[0] != counts[1] else ""
        print(f"snapshot {number + 1}, {counts[0]} interior buffered edges{also}")
    best = fusion.most_fused
    shown = (fusion.fused if options.raw else fusion.snapshots)[best]
    print(f"\nsnapshot {best + 1}:\n")
    print(show(shown))
    if isinstance(fusion, SafeFusion) and not options.raw:
        for choice in fusion.safety[best].choices:
            print(f"made safe: {choice}")
    left = {(edge.path, edge.value, edge.consumer) for edge in buffered(shown)}
    for reason in fusion.why_not(best, shown=shown):
        edge = reason.edge
        if (edge.path, edge.value, edge.consumer) in left:
            print(f"left in global memory: {reason}")


def _print_pareto(
    graph: Graph, options: argparse.Namespace, tiles: Mapping[Dim | str, int]
) -> None:
    sizes = all_sizes(graph, options.size)
    _print_alternatives(alternatives(graph, options.rules, sizes, tiles), options.all)
    left_out = len(unit_sets(graph)) - len(tried_sets(graph))
    if left_out:
        print(f"{left_out} sets of unit dims were not tried")


def _print_alternatives(rows: Sequence[Alternative], everything: bool) -> None:
    print("unit dims       snapshot  edges        traffic   flops        local")
    for row in rows:
        if row.best or everything:
            unit = ",".join(row.unit) or "-"
            mark = "" if row.best else "  (dominated)"
            print(
                f"{unit:14}  {row.snapshot + 1:8}  {row.edges:5}  {row.traffic:13,}  "
                f"{row.flops:5.2f}x  {row.local:11,}{mark}"
            )


COMMAND = Command("fuse", "fuse a program: its snapshots, and why not more", _run, _add_options)
