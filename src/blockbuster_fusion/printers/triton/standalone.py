"""Standalone Triton files: a module of kernels, a function that runs them, and a test of it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.naming import Scope, comment, comment_lines
from blockbuster_fusion.nest.nest import (
    Buffer,
    Clear,
    Kernel,
    Launchable,
    Space,
    Tile,
)
from blockbuster_fusion.nest.passes.cascade_sums import run_length
from blockbuster_fusion.printers.reserved import TRITON
from blockbuster_fusion.printers.standalone import (
    TOLERANCE,
    FileTest,
    Lengths,
    LengthText,
    array_name,
    product,
    total,
    wrapped,
)
from blockbuster_fusion.printers.standalone_helpers import TRITON_HELPERS
from blockbuster_fusion.printers.triton.launch_plan import (
    FEW_WARPS,
    MOST_ACCUMULATED,
    MOST_WARPS,
    OPTIONS,
    SMALLEST,
    USUAL,
    LaunchPlanner,
)

INTERPRETER = "Triton's interpreter computes bfloat16 wrongly: run this on a GPU"


def triton_file(source: str, test: FileTest, lines: Sequence[str]) -> str:
    """A Python file with Triton kernels, a function that runs them and a `main` that tests it."""
    quoted = "\n".join(comment_lines(lines))
    imports = source.lstrip().replace(
        "import triton\n", "import sys\n\nimport torch\nimport triton\n", 1
    )
    run = RunFunction(test)
    parts = [f'"""{quoted}\n"""\n', imports.rstrip(), "", "", *run.lines(), "", ""]
    parts += [TRITON_HELPERS, "", ""]
    parts += ['DEVICE = "cuda" if torch.cuda.is_available() else "cpu"']
    parts += ["INTERPRETED = bool(triton.knobs.runtime.interpret)", "", ""]
    return "\n".join([*parts, *_main(run), ""])


@dataclass(frozen=True)
class RunFunction:
    """The function of a file that takes the program's tensors and launches its kernels."""

    test: FileTest

    @property
    def name(self) -> str:
        return f"run_{self.test.nest.name}"

    @cached_property
    def names(self) -> Scope:
        """The names of tensors and sizes."""
        nest = self.test.nest
        own = {x.name for x in (*nest.kernels, *nest.launches)}
        return Scope(TRITON, {*own, self.name, "sizes"})

    @property
    def outputs(self) -> list[Buffer]:
        """The tensors that are returned, in the program's order."""
        return [view.buffer for view in self.test.nest.outputs]

    @property
    def made(self) -> list[Buffer]:
        """The tensors that the function allocates: outputs, and those between kernels."""
        return [b for b in self.test.buffers if b not in self.test.nest.inputs]

    def id(self, thing: Buffer | Symbol) -> str:
        return self.names(thing, thing.name)

    def lines(self) -> list[str]:
        inputs = [self.id(b) for b in self.test.nest.inputs]
        lines = [f"def {self.name}({', '.join(inputs)}):", *self._docstring(), "    sizes = {}"]
        for buffer in self.test.nest.inputs:
            axes = [self.lengths.extent(axis.dim.axis) for axis in buffer.axes]
            shown = _tuple(f'"{a}"' if isinstance(a, str) else a for a in axes)
            name = self.id(buffer)
            lines.append(f'    fit("{name}", {name}, {shown}, torch.{buffer.dtype}, sizes)')
        lines += [f'    {name} = sizes["{name}"]' for name in self._sizes()]
        for buffer in self.made:
            shape = _tuple(self.lengths.along(buffer.axes[at]) for at in self.test.order(buffer))
            where = f"dtype=torch.{buffer.dtype}, device={inputs[0]}.device"
            lines.append(f"    {self.id(buffer)} = torch.empty({shape}, {where})")
        for step in self.test.steps():
            if isinstance(step, Clear):
                lines.append(f"    {self.id(step.buffer)}.zero_()")
            else:
                lines += self._launch(step)
        given = [self._returned(buffer) for buffer in self.outputs]
        return [*lines, f"    return {', '.join(given)}"]

    def _sizes(self) -> list[str]:
        """The names of the sizes that follow from the inputs."""
        axes = [axis.dim.axis.extent for b in self.test.nest.inputs for axis in b.axes]
        return list(dict.fromkeys(self.id(e) for e in axes if isinstance(e, Symbol)))

    def _returned(self, buffer: Buffer) -> str:
        copied = ".clone()" if buffer in self.test.nest.inputs else ""
        return f"{self.id(buffer)}{copied}"

    def _docstring(self) -> list[str]:
        made = ", ".join(map(self._described, self.outputs))
        given = "; ".join(map(self._described, self.test.nest.inputs))
        title = comment(f"{made} of {self.test.nest.name}.")
        return [
            f'    """{title}',
            "",
            f"    {comment(given)}. Any strides.",
            '    """',
        ]

    def _described(self, buffer: Buffer) -> str:
        axes = [str(self.lengths.along(buffer.axes[at])) for at in self.test.order(buffer)]
        return f"{self.id(buffer)}[{', '.join(axes)}] {buffer.dtype}"

    # ---------------------------------------------------------------- launches

    def _launch(self, launched: Launchable) -> list[str]:
        planner = LaunchPlanner(launched)
        names = planner.names
        grids = {k: product(self.lengths.count(i.dim) for i in k.grid) for k in launched.kernels}
        stages = self._stages(planner)
        numbers: dict[str, LengthText | bool] = {
            **dict.fromkeys(names.groups.values(), OPTIONS["group"]),
            "STAGES": stages,
        }
        arguments: list[str] = []
        for buffer in launched.buffers:
            if buffer.space is Space.GLOBAL:
                own = self.id(buffer)
                arguments.append(f"{names.pointers[buffer]}={own}")
                order = self.test.order(buffer)
                strides = [f"{own}.stride({order.index(at)})" for at in range(len(buffer.axes))]
                numbers |= zip(names.strides[buffer], strides, strict=True)
        owners = {buffer: kernel for kernel in launched.kernels for buffer in kernel.buffers}
        for buffer, copies in names.copies.items():
            shape = (grids[owners[buffer]], *(self.lengths.along(axis) for axis in buffer.axes))
            steps = [product(shape[at + 1 :]) for at in range(len(shape))]
            numbers |= zip((copies, *names.strides[buffer]), steps, strict=True)
            arguments.append(f"{names.pointers[buffer]}={self._scratch(buffer, product(shape))}")
        for dim in self._long(planner):
            run = self._run(planner, dim)
            numbers[names.runs[dim]] = run
            if dim in names.run_lengths:
                numbers[names.runs[dim]] = f"min({run}, 1)"
                numbers[names.run_lengths[dim]] = f"max({run}, 1)"
        for symbol, name in names.sizes.items():
            numbers[name] = self.id(symbol)
        for dim, name in names.blocks.items():
            numbers[name] = self._block(dim)
            numbers[names.evens[dim]] = self._is_even(dim)
        programs: LengthText = total(grids.values())
        if isinstance(launched, Kernel) and launched.programs:
            programs = numbers["PROGRAMS"] = f"min({programs}, {launched.programs})"
        arguments += [f"{name}={value}" for name, value in numbers.items()]
        options = f'{{"num_warps": {self._warps(planner)}, "num_stages": {stages}}}'
        head = f"    launch({launched.name}, {programs}, {options}, "
        return wrapped(f"{head}{', '.join(arguments)})")

    def _scratch(self, buffer: Buffer, count: LengthText) -> str:
        device = f"{self.id(self.test.nest.inputs[0])}.device"
        return f"torch.empty({count}, dtype=torch.{buffer.dtype}, device={device})"

    def _long(self, planner: LaunchPlanner) -> list[Dim]:
        """The dims of long loops, in a deterministic order."""
        return sorted(planner.long_dims, key=lambda dim: dim.label)

    def _run(self, planner: LaunchPlanner, dim: Dim) -> LengthText:
        """As LaunchPlanner.run: the number of blocks of a partial sum."""
        blocks = self.lengths.count(dim)
        if isinstance(blocks, int):
            return run_length(blocks, planner.few)
        return f"run_length({blocks}, {planner.few})"

    def _warps(self, planner: LaunchPlanner) -> LengthText:
        """As LaunchPlanner.warps: more if the accumulators would not stay in registers.

        Without products, for the sizes of the test.
        """
        if not planner.launched.multiplies:
            return planner.warps(self._test_sizes, self.test.tiling.tiles)
        runs = [self._run(planner, dim) for dim in self._long(planner)]
        short = self._most([k.accumulators(planner.long_dims) for k in planner.kernels])
        long = self._most([k.accumulators(()) for k in planner.kernels])
        if long == short or not any(runs):
            return short
        return f"({long}) if {' or '.join(map(str, runs))} else ({short})"

    def _stages(self, planner: LaunchPlanner) -> int:
        """As LaunchPlanner.stages, for the sizes of the test."""
        sizes, tiles = self._test_sizes, self.test.tiling.tiles
        return planner.stages(sizes, tiles, MOST_WARPS, OPTIONS["num_stages"])

    @cached_property
    def _test_sizes(self) -> dict[str, int]:
        extents = self.test.tiling.extents
        return {symbol.name: size for symbol, size in extents.sizes.items()}

    def _most(self, accumulators: Sequence[Sequence[Tile]]) -> LengthText:
        """The most warps that the accumulators of a kernel need."""
        warps = list(dict.fromkeys(self._warps_for(tiles) for tiles in accumulators))
        if all(isinstance(n, int) for n in warps):
            return max(n for n in warps if isinstance(n, int))
        return str(warps[0]) if len(warps) == 1 else f"max({', '.join(map(str, warps))})"

    def _warps_for(self, accumulators: Iterable[Tile]) -> LengthText:
        rooms = [product(self._block(span.dim) for span in tile.spans) for tile in accumulators]
        most = MOST_ACCUMULATED * 32 * FEW_WARPS
        if all(isinstance(room, int) for room in rooms):
            total = sum(room for room in rooms if isinstance(room, int))
            return MOST_WARPS if total > most else FEW_WARPS
        return f"{MOST_WARPS} if {' + '.join(map(str, rooms))} > {most} else {FEW_WARPS}"

    @cached_property
    def lengths(self) -> Lengths:
        return Lengths(self.id, self._block, "triton.cdiv")

    def _block(self, dim: Dim) -> LengthText:
        """As `block_length`: a power of two, and long enough for a dot."""
        if not dim.packed:
            return 1
        tiles = self.test.tiling.tiles
        if not dim.unit and dim in tiles:
            return tiles[dim]
        extent = self.lengths.extent(dim.axis)
        if isinstance(extent, int):
            whole = max(SMALLEST, 1 << (extent - 1).bit_length())
            return whole if dim.unit else min(whole, USUAL)
        text = f"max({SMALLEST}, triton.next_power_of_2({extent}))"
        return text if dim.unit else f"min({USUAL}, {text})"

    def _is_even(self, dim: Dim) -> LengthText | bool:
        extent, block = self.lengths.extent(dim.axis), self._block(dim)
        if isinstance(extent, int) and isinstance(block, int):
            return extent > 0 and extent % block == 0
        return f"{extent} > 0 and {extent} % {block} == 0"


def _tuple(items: Iterable[LengthText]) -> str:
    texts = [str(item) for item in items]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


# ------------------------------------------------------------------------ the test


def _main(run: RunFunction) -> list[str]:
    test, below = run.test, run.test.places_below
    lines = ["def main():", *_refusals(test)]
    for number, buffer in enumerate(test.nest.inputs):
        places = f", {below[buffer]}" if buffer in below else ""
        sample = f"sample({number}, {test.shape(buffer)}, torch.{buffer.dtype}{places})"
        lines.append(f"    {array_name(buffer)} = {sample}")
    given = ", ".join(array_name(b) for b in test.nest.inputs)
    results = [f"array_{number}" for number in range(len(run.outputs))]
    lines.append(f"    {', '.join(results)} = {run.name}({given})")
    lines.append("    good = True")
    for buffer, wanted in test.outputs:
        values = ", ".join(map(_number, wanted.values))
        lines += wrapped(
            f'    good &= check("{buffer.name}", {results[run.outputs.index(buffer)]}, '
            f"{list(wanted.at)}, [{values}], {wanted.scale!r}, {TOLERANCE[buffer.dtype]!r})"
        )
    lines += ['    print("ok" if good else "WRONG")', "    return 0 if good else 1", "", ""]
    return [*lines, 'if __name__ == "__main__":', "    raise SystemExit(main())"]


def _number(x: float) -> str:
    return repr(x) if math.isfinite(x) else f'float("{x}")'


def uses_bfloat16(test: FileTest) -> bool:
    """True if a test has bfloat16 arrays, which Triton's interpreter computes wrongly."""
    return any(buffer.dtype is DType.bfloat16 for buffer in test.buffers)


def _refusals(test: FileTest) -> list[str]:
    """The lines of `main` for machines on which the kernels cannot be tested."""
    wrong = [
        "    if INTERPRETED:",
        f'        print("{INTERPRETER}")',
        "        return 0",
    ]
    remedy = "run this on a machine with one"
    if not uses_bfloat16(test):
        wrong, remedy = [], f"{remedy}, or with TRITON_INTERPRET=1"
    return [
        *wrong,
        '    if DEVICE == "cpu" and not INTERPRETED:',
        f'        print("PyTorch finds no GPU here: {remedy}", file=sys.stderr)',
        "        return 2",
    ]
