"""The command line: `blockbuster trace attention`."""

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from blockbuster_fusion import examples
from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.bench import LENGTHS, bench, demo
from blockbuster_fusion.compiler import SafeFusion, fuse
from blockbuster_fusion.emit import emit
from blockbuster_fusion.errors import BlockbusterError, UnknownExample, WrongKind
from blockbuster_fusion.fusion.pareto import Alternative, alternatives, tried_sets, unit_sets
from blockbuster_fusion.fusion.trace import Trace
from blockbuster_fusion.interp.meter import meter
from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.show import show
from blockbuster_fusion.ir.text import to_text
from blockbuster_fusion.options import (
    BENCH_EXAMPLE,
    EMIT_EXAMPLE,
    PROGRAM,
    add_choices,
    add_rules,
    add_target,
    check_writable,
    numbers,
    positive,
    seconds,
    snapshot_index,
)
from blockbuster_fusion.programs import find_program
from blockbuster_fusion.safety.check import check
from blockbuster_fusion.safety.safe import make_safe


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    try:
        return _run(arguments)
    except UnknownExample as error:
        return _failed(_suggestion(str(error.name)) or str(error))
    except BlockbusterError as error:
        return _failed(str(error))
    except BrokenPipeError:  # `blockbuster … | head` is no error
        sys.stderr.close()
        return 0
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError:
        return _failed("there is not enough memory for these sizes: choose smaller ones")
    except KeyboardInterrupt:
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.print_help()
        return 2
    options.run(options)
    return 0


def _failed(sentence: str) -> int:
    print(f"blockbuster: {sentence}", file=sys.stderr)
    return 1


def _suggestion(name: str) -> str | None:
    """What is said of a name that is nearly an example's."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), examples.EXAMPLES, 1)
    return f"unknown example {name!r}: did you mean {near[0]}?" if near else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="blockbuster", description="Operator fusion for AI inference, at the level of blocks."
    )
    parser.add_argument("--version", action="version", version=f"blockbuster {_version()}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="command")

    trace = commands.add_parser("trace", help="fuse an example and print every step")
    trace.add_argument("example", nargs="?", help="an example's name, see `blockbuster list`")
    add_rules(trace, "paper")
    trace.add_argument(
        "--steps", choices=["all", "last", "none"], default="all", help="which listings to print"
    )
    trace.add_argument(
        "--size", metavar="S=N", action="append", default=[], help="an extent, for traffic: MM=512"
    )
    trace.add_argument(
        "--tile", metavar="D=N", action="append", default=[], help="a tile, for traffic: M=64"
    )
    trace.add_argument("--save", metavar="FILE", help="write the trace as JSON")
    trace.add_argument("--load", metavar="FILE", help="print a saved trace instead of an example")
    trace.set_defaults(run=_trace)

    fused = commands.add_parser("fuse", help="fuse an example: its snapshots, and why not more")
    fused.add_argument("example", help="an example's name")
    add_rules(fused, "extended")
    fused.add_argument(
        "--unit",
        metavar="D",
        action="append",
        default=[],
        help="a dim that has one block, or several: D,K",
    )
    fused.add_argument(
        "--pareto", action="store_true", help="every snapshot for every set of unit dims, measured"
    )
    fused.add_argument("--raw", action="store_true", help="as the rules made it, not made safe")
    fused.add_argument("--all", action="store_true", help="with --pareto: the dominated ones too")
    fused.add_argument(
        "--size",
        metavar="S=N",
        action="append",
        default=[],
        help="an extent (default 512, batch 4)",
    )
    fused.add_argument("--tile", metavar="D=N", action="append", default=[], help="a tile: M=64")
    fused.set_defaults(run=_fuse)

    checked = commands.add_parser("check", help="how exact an example's snapshots are")
    checked.add_argument("example", help="an example's name")
    add_rules(checked, "extended")
    dtypes = ["float32", "bfloat16", "float16"]
    checked.add_argument("--dtype", default="float32", choices=dtypes, help="how lists are stored")
    checked.set_defaults(run=_check)

    listing = commands.add_parser("show", help="print an example's block program")
    listing.add_argument("example", help="an example's name")
    listing.add_argument("--text", action="store_true", help="the text form, which loads again")
    listing.add_argument("--lock", action="store_true", help="reductions in parallel, with a lock")
    listing.set_defaults(run=_show)

    raw = argparse.RawDescriptionHelpFormatter
    text = "write a program's kernels as a standalone file"
    emitted = commands.add_parser("emit", help=text, epilog=EMIT_EXAMPLE, formatter_class=raw)
    emitted.add_argument("program", help=PROGRAM)
    add_target(emitted)
    add_rules(emitted, "extended")
    add_choices(emitted, "a size that is fixed: D=64 (default: sizes are arguments)")
    emitted.add_argument("-o", "--output", metavar="FILE", help="where to (default: printed)")
    emitted.set_defaults(run=_emit)

    text = "a program compiled, against PyTorch"
    measured = commands.add_parser("bench", help=text, epilog=BENCH_EXAMPLE, formatter_class=raw)
    measured.add_argument("program", help=PROGRAM)
    add_target(measured)
    usual = " or ".join(f"{n} (batches {b}) on {name}" for name, (b, n) in LENGTHS.items())
    add_choices(measured, f"a size: M=1024 (default: {usual}; 64 for the width of a head)")
    text = "for the CPU (default: as many as there are)"
    measured.add_argument("--threads", type=positive, metavar="N", help=text)
    text = "how long each contender is run (default: %(default)s)"
    measured.add_argument("--seconds", type=seconds, default=2.0, metavar="S", help=text)
    text = "write the result as JSON, snapshots counted from 1 (default: not written)"
    measured.add_argument("--json", metavar="FILE", help=text)
    measured.set_defaults(run=_bench)

    shown = commands.add_parser("demo", help="three programs fused, compiled, checked and timed")
    shown.set_defaults(run=_demo)

    table = commands.add_parser("table", help="buffered edges that are left, for every example")
    add_rules(table, "paper")
    table.set_defaults(run=_table)

    names = commands.add_parser("list", help="the examples")
    names.set_defaults(run=_list)
    return parser


def _version() -> str:
    try:
        return version("blockbuster-fusion")
    except PackageNotFoundError:
        return "(not installed)"


def _trace(options: argparse.Namespace) -> None:
    if (options.example is None) == (options.load is None):
        raise BlockbusterError(message="trace: name an example, or a saved trace with --load")
    sizes = numbers("--size", options.size)
    tiles: dict[Dim | str, int] = dict(numbers("--tile", options.tile).items())
    if options.load:
        trace = Trace.load(options.load)
        title = f"{options.load}: {len(trace)} steps by the {trace.rules.name} rules\n"
    else:
        program = examples.find(options.example)
        trace = fuse(lower(program), options.rules).trace
        title = f"{program}\n"
    if sizes or tiles:
        sizes = _all_sizes(trace.initial, sizes)
        meter(trace.initial, sizes, tiles)  # what is wrong with them is said before all else
    print(title)
    _print_program("initial block program", trace.initial, options.steps == "all", sizes, tiles)
    if 0 in trace.snapshots:
        print("snapshot 1\n")
    for step in trace:
        listed = options.steps == "all" or (options.steps == "last" and step.index == len(trace))
        _print_program(str(step), step.after, listed, sizes, trace.tiles_after(step.index, tiles))
        if step.index in trace.snapshots:
            print(f"snapshot {trace.snapshots.index(step.index) + 1}\n")
    last = trace.program_after(len(trace))
    safe = make_safe(last)
    for choice in safe.choices:
        print(f"made safe: {choice}")
    if safe.choices:
        tiles = trace.tiles_after(len(trace), tiles)
        _print_program("numerically safe", safe.graph, options.steps != "none", sizes, tiles)
    if options.save:
        trace.save(options.save)
        print(f"saved to {Path(options.save)}")


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


def _all_sizes(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    """Every symbolic size of a program: those that are given, 512 for the others."""
    extents = {dim.axis.extent for dim in graph.dims}
    symbols = sorted(extent.name for extent in extents if isinstance(extent, Symbol))
    unknown = [name for name in given if name not in symbols]
    if unknown:
        message = (
            f"--size {unknown[0]}: the program's sizes are {', '.join(symbols) or 'all fixed'}"
        )
        raise BlockbusterError(message=message)
    batch = {str(d.axis.extent) for d in graph.dims if not d.packed}
    return {name: given.get(name, 4 if name in batch else 512) for name in symbols}


def _fuse(options: argparse.Namespace) -> None:
    graph = lower(examples.find(options.example))
    tiles: dict[Dim | str, int] = dict(numbers("--tile", options.tile).items())
    _check_modes(options)
    options.unit = [name for given in options.unit for name in given.split(",")]
    if options.pareto:
        sizes = _all_sizes(graph, numbers("--size", options.size))
        _print_alternatives(alternatives(graph, options.rules, sizes, tiles), options.all)
        left_out = len(unit_sets(graph)) - len(tried_sets(graph))
        if left_out:
            print(f"{left_out} sets of unit dims were not tried")
        return
    fusion = fuse(graph, options.rules, unit=options.unit)
    for number, (raw, safe) in enumerate(zip(fusion.fused, fusion.snapshots, strict=True)):
        counts = len(buffered(raw)), len(buffered(safe))
        also = f" ({counts[1]} when made safe)" if counts[0] != counts[1] else ""
        print(f"snapshot {number + 1}, {counts[0]} interior buffered edges{also}")
    best = fusion.most_fused
    print(f"\nsnapshot {best + 1}:\n")
    print(show((fusion.fused if options.raw else fusion.snapshots)[best]))
    if isinstance(fusion, SafeFusion) and not options.raw:
        for choice in fusion.safety[best].choices:
            print(f"made safe: {choice}")
    for reason in fusion.why_not():
        print(f"left in global memory: {reason}")


def _check_modes(options: argparse.Namespace) -> None:
    """Options that go with one way of looking only."""
    measured = [name for name in ("all", "size", "tile") if getattr(options, name)]
    printed = [name for name in ("unit", "raw") if getattr(options, name)]
    if measured and not options.pareto:
        raise BlockbusterError(message=f"fuse: --{measured[0]} goes with --pareto only")
    if printed and options.pareto:
        message = f"fuse: --{printed[0]} does not go with --pareto, which tries every set of dims"
        raise BlockbusterError(message=message)


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


def _check(options: argparse.Namespace) -> None:
    program = examples.find(options.example)
    print(check(program, dtype=options.dtype, rules=options.rules))


def _show(options: argparse.Namespace) -> None:
    graph = lower(examples.find(options.example))
    if options.text:
        print(to_text(graph), end="")
    else:
        print(show(graph, reductions="lock" if options.lock else "serial"), end="")


def _emit(options: argparse.Namespace) -> None:
    with _numbered_from_1(options.snapshot):
        text = emit(
            find_program(options.program),
            target=options.target,
            snapshot=snapshot_index(options.snapshot),
            tiles=numbers("--tile", options.tile),
            sizes=numbers("--size", options.size),
            dtype=options.dtype,
            rules=options.rules,
            file=options.output,
        )
    if options.output is None:
        print(text, end="")
        return
    Path(options.output).write_text(text, encoding="utf-8")
    print(f"written to {options.output}")


@contextmanager
def _numbered_from_1(given: int | None) -> Iterator[None]:
    """Says which snapshots there are in the numbers of the command line."""
    try:
        yield
    except WrongKind as error:
        count = error.details.get("snapshots")
        if count is None:
            raise
        there = "there is 1" if count == 1 else f"there are {count}"
        message = f"snapshot {given}: {there}, numbered from 1"
        raise BlockbusterError(message=message) from error


def _bench(options: argparse.Namespace) -> None:
    if options.json:
        check_writable(Path(options.json))
    with _numbered_from_1(options.snapshot):
        result = bench(
            find_program(options.program),
            target=options.target,
            sizes=numbers("--size", options.size),
            dtype=options.dtype,
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


def _demo(options: argparse.Namespace) -> None:
    for text in demo():
        print(text, flush=True)


def _table(options: argparse.Namespace) -> None:
    width = max(len(name) for name in examples.EXAMPLES)
    print(f"{'program':{width}}  operators  initial  interior buffered edges per snapshot  steps")
    for name in examples.EXAMPLES:
        program: ArrayProgram = examples.find(name)
        fusion = fuse(lower(program), options.rules)
        edges = ", ".join(str(len(buffered(snapshot))) for snapshot in fusion.fused)
        initial = len(buffered(fusion.initial))
        count, steps = len(program.operators), len(fusion.trace)
        print(f"{name:{width}}  {count:9}  {initial:7}  {edges:37}  {steps:5}")


def _list(options: argparse.Namespace) -> None:
    width = max(len(name) for name in examples.EXAMPLES)
    for name, function in examples.EXAMPLES.items():
        summary = (function.__doc__ or "").strip().splitlines()[0]
        print(f"{name:{width}}  {summary}")


if __name__ == "__main__":
    sys.exit(main())
