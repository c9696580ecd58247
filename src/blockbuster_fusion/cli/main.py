"""The command line: `blockbuster trace attention`."""

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.cli.options import (
    BENCH_EXAMPLE,
    EMIT_EXAMPLE,
    FUNCTION,
    PROGRAM,
    Parser,
    add_choices,
    add_rules,
    add_sizes,
    add_target,
    add_tiles,
    all_sizes,
    check_writable,
    given_sizes,
    numbers,
    positive,
    seconds,
    snapshot_index,
)
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.compiler import SafeFusion, fuse
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import BlockbusterError, UnknownExample, WrongKind
from blockbuster_fusion.fusion.pareto import Alternative, alternatives, tried_sets, unit_sets
from blockbuster_fusion.fusion.trace import Trace
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.text import to_text
from blockbuster_fusion.messages import INTERRUPTED, complain, prefixed_messages
from blockbuster_fusion.runtime import cache
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.tools import examples
from blockbuster_fusion.tools.bench import LENGTHS, bench, demo
from blockbuster_fusion.tools.check.judge import check
from blockbuster_fusion.tools.emit import emit
from blockbuster_fusion.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    with prefixed_messages() as interruption:
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # `blockbuster … | head` is no error
            sys.stderr.close()
            return 0
        except Exception as error:
            if interruption.happened:  # what it broke off may have raised an error of its own
                return INTERRUPTED
            sentence = _sentence(error)
            if sentence is None:
                raise
            complain(sentence)
            return 1


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.print_help()
        return 2
    options.run(options)
    return 0


def _sentence(error: Exception) -> str | None:
    """The message for an error that a user can mend; None for a defect of the package."""
    match error:
        case UnknownExample():
            return _suggestion(str(error.name)) or str(error)
        case BlockbusterError():
            return str(error)
        case OSError():
            return f"{error.filename}: {error.strerror}" if error.filename else str(error)
        case MemoryError():
            return "there is not enough memory for these sizes: choose smaller ones"
    return None


def _suggestion(name: str) -> str | None:
    """The message for a name that is nearly an example's."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), examples.EXAMPLES, 1)
    return f"unknown example {name!r}: did you mean {near[0]}?" if near else None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="blockbuster", description="Operator fusion for AI inference, at the level of blocks."
    )
    parser.add_argument("--version", action="version", version=f"blockbuster {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="command")
    raw = argparse.RawDescriptionHelpFormatter

    def command(name: str, text: str, epilog: str = FUNCTION) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, epilog=epilog, formatter_class=raw)

    trace = command("trace", "fuse a program and print every step")
    trace.add_argument("program", nargs="?", help=PROGRAM)
    add_rules(trace)
    trace.add_argument(
        "--steps", choices=["all", "last", "none"], default="all", help="which listings to print"
    )
    add_sizes(trace, "a length, for traffic: M=512 (default: 512, batch 4)")
    add_tiles(trace, "a tile, for traffic: M=64")
    trace.add_argument("--save", metavar="FILE", help="write the trace as JSON")
    trace.add_argument("--load", metavar="FILE", help="print a saved trace instead of a program's")
    trace.set_defaults(run=_trace)

    fused = command("fuse", "fuse a program: its snapshots, and why not more")
    fused.add_argument("program", help=PROGRAM)
    add_rules(fused)
    fused.add_argument(
        "--unit",
        metavar="D",
        action="append",
        default=[],
        help="an axis that has one block, or several: D,K",
    )
    fused.add_argument(
        "--pareto", action="store_true", help="every snapshot for every set of unit dims, measured"
    )
    fused.add_argument("--raw", action="store_true", help="as the rules made it, not made safe")
    fused.add_argument("--all", action="store_true", help="with --pareto: the dominated ones too")
    add_sizes(fused, "with --pareto, a length: M=512 (default: 512, batch 4)")
    add_tiles(fused, "with --pareto, a tile: M=64")
    fused.set_defaults(run=_fuse)

    checked = command("check", "how exact a program's snapshots are")
    checked.add_argument("program", help=PROGRAM)
    add_rules(checked)
    dtypes = ["float32", "bfloat16", "float16"]
    checked.add_argument("--dtype", default="float32", choices=dtypes, help="how lists are stored")
    checked.set_defaults(run=_check)

    listing = command("show", "print a program's block program, unfused")
    listing.add_argument("program", help=PROGRAM)
    listing.add_argument("--text", action="store_true", help="the text form, which loads again")
    listing.add_argument("--lock", action="store_true", help="reductions in parallel, with a lock")
    listing.set_defaults(run=_show)

    emitted = command("emit", "write a program's kernels as a standalone file", EMIT_EXAMPLE)
    emitted.add_argument("program", help=PROGRAM)
    add_target(emitted)
    add_rules(emitted)
    add_choices(emitted)
    add_sizes(emitted, "a size that is fixed: D=64 (default: sizes are arguments)")
    text = "where to (default: printed); a C file gets a header of the same name"
    emitted.add_argument("-o", "--output", metavar="FILE", help=text)
    emitted.add_argument("--header", action="store_true", help="the header of the C file alone")
    emitted.set_defaults(run=_emit)

    measured = command("bench", "a program compiled, against PyTorch", BENCH_EXAMPLE)
    measured.add_argument("program", help=PROGRAM)
    add_target(measured)
    add_rules(measured)
    add_choices(measured)
    usual = " or ".join(f"{n} (batches {b}) on {name}" for name, (b, n) in LENGTHS.items())
    add_sizes(measured, f"a length: M=1024 (default: {usual}; 64 for the width of a head)")
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
    add_rules(table)
    table.set_defaults(run=_table)

    kept = commands.add_parser(
        "cache", help="the kernels that are kept: where, how many, how large"
    )
    kept.add_argument("--clear", action="store_true", help="remove them all")
    text = "remove those that were not used for longest, until the rest fits: 500M"
    kept.add_argument("--limit", metavar="SIZE", help=text)
    kept.set_defaults(run=_cache)

    names = commands.add_parser("list", help="the examples")
    names.set_defaults(run=_list)
    return parser


def _trace(options: argparse.Namespace) -> None:
    if (options.program is None) == (options.load is None):
        raise BlockbusterError(message="trace: name a program, or a saved trace with --load")
    sizes: Mapping[str, int] = {}
    tiles: dict[Dim | str, int] = dict(numbers("--tile", options.tile).items())
    if options.load:
        trace = Trace.load(options.load)
        title = f"{options.load}: {len(trace)} steps by the {trace.rules.name} rules\n"
    else:
        program = find_program(options.program)
        trace = fuse(lower(program), options.rules).trace
        title = f"{program}\n"
    if options.size or tiles:
        sizes = all_sizes(trace.initial, options.size)
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


def _fuse(options: argparse.Namespace) -> None:
    graph = lower(find_program(options.program))
    tiles: dict[Dim | str, int] = dict(numbers("--tile", options.tile).items())
    _check_modes(options)
    options.unit = [name for given in options.unit for name in given.split(",")]
    if options.pareto:
        sizes = all_sizes(graph, options.size)
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
    program = find_program(options.program)
    report = check(program, dtype=options.dtype, rules=options.rules)
    print(report)
    if not report.ok:
        raise BlockbusterError(message="check: a snapshot is less exact than a careful program")


def _show(options: argparse.Namespace) -> None:
    graph = lower(find_program(options.program))
    if options.text:
        print(to_text(graph), end="")
    else:
        print(show(graph, reductions="lock" if options.lock else "serial"), end="")


def _emit(options: argparse.Namespace) -> None:
    if options.header and options.target != "cpu":
        raise BlockbusterError(message="emit: --header goes with --target cpu only")
    file = None if options.output is None else Path(options.output)
    if file is not None and file.suffix == ".h":
        message = f"emit: {file} is a header's name: name the C file, and {file.name} is beside it"
        raise BlockbusterError(message=message)
    program = find_program(options.program)
    with _numbered_from_1(options.snapshot):
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
    program = find_program(options.program)
    with _numbered_from_1(options.snapshot):
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


def _cache(options: argparse.Namespace) -> None:
    if options.clear and options.limit is not None:
        raise BlockbusterError(message="cache: --clear and --limit do not go together")
    limit = 0 if options.clear else None
    if options.limit is not None:
        limit = cache.parsed_size("--limit", options.limit)
    folder = cache.usable_folder()
    if folder is None:
        wanted = cache.cache_folder() or "a home for the cache"
        raise BlockbusterError(message=f"{wanted}: there is no cache that can be used")
    if limit is not None:
        print(f"removed: {cache.shrink(folder, limit)} kernels")
    found = cache.usage(folder)
    most, source = cache.size_limit(), cache.LIMIT_VARIABLE
    print(f"folder:  {folder} ({cache.VARIABLE} names another)")
    print(f"kernels: {len(found.entries)}, {_bytes(found.size)}")
    print(f"limit:   {_bytes(most)} ({source} sets another)")


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def _list(options: argparse.Namespace) -> None:
    width = max(len(name) for name in examples.EXAMPLES)
    for name, function in examples.EXAMPLES.items():
        summary = (function.__doc__ or "").strip().splitlines()[0]
        print(f"{name:{width}}  {summary}")


if __name__ == "__main__":
    sys.exit(main())
