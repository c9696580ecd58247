"""Standalone C files: kernels, a function that runs them all, its header, and a test of it.

The file is C and C++ alike. `main` is compiled with -DBLOCKBUSTER_MAIN only, so that the file can
be linked into a program.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.tiling import DEFAULT_TILE
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.naming import Scope, comment, comment_lines
from blockbuster_fusion.nest.nest import Buffer, Clear, Kernel, is_placed
from blockbuster_fusion.printers.c.prelude import OUTSIDE
from blockbuster_fusion.printers.operators import C_STORED, C_TYPES
from blockbuster_fusion.printers.reserved import C
from blockbuster_fusion.printers.standalone import (
    TOLERANCE,
    ExpectedElements,
    FileTest,
    Lengths,
    LengthText,
    array_name,
    product,
    wrapped,
)
from blockbuster_fusion.printers.standalone_helpers import C_HELPERS

NARROW = (DType.float16, DType.bfloat16)
"""Dtypes without a C type of their own: their arrays are passed as `void *`."""


def c_file(source: str, test: FileTest, lines: Sequence[str]) -> str:
    """A C file with kernels, a function that runs them, and a `main` that tests it."""
    head = ["/*", *(f" * {line}".rstrip() for line in comment_lines(lines)), " */"]
    run = RunFunction(test)
    parts = [*head, "", "#include <stdint.h>", "", *run.declarations(), "", source.rstrip(), ""]
    parts += [*run.definition(), "", "#ifdef BLOCKBUSTER_MAIN", "", *_main(run), ""]
    return "\n".join([*parts, "#endif /* BLOCKBUSTER_MAIN */", ""])


def c_header(test: FileTest, source: str) -> str:
    """The header of a C file; `source` names the file."""
    run = RunFunction(test)
    guard = f"BLOCKBUSTER_{test.nest.name.upper()}_H"
    lines = [f"/* Declarations of {comment(source)}, made by Blockbuster. */", ""]
    lines += [f"#ifndef {guard}", f"#define {guard}", "", "#include <stdint.h>", ""]
    return "\n".join([*lines, *run.declarations(), "", f"#endif /* {guard} */", ""])


@dataclass(frozen=True)
class RunFunction:
    """The function of a file that takes the program's arrays and runs its kernels."""

    test: FileTest

    @property
    def name(self) -> str:
        return f"run_{self.test.nest.name}"

    @cached_property
    def names(self) -> Scope:
        """The names of parameters, in the order in which they are passed; sizes keep theirs."""
        names = Scope(C, {kernel.name for kernel in self.test.nest.kernels} | {self.name})
        for symbol in self.symbols:
            names(symbol, symbol.name)
        for buffer in self.test.buffers:
            names(buffer, buffer.name)
        return names

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that are passed."""
        axes = [axis.dim.axis.extent for b in self.test.buffers for axis in b.axes]
        found = [e for e in axes if isinstance(e, Symbol)]
        found += [symbol for kernel in self.test.nest.kernels for symbol in kernel.symbols]
        return tuple(dict.fromkeys(found))

    @property
    def outputs(self) -> list[Buffer]:
        return [buffer for buffer, _ in self.test.outputs]

    @property
    def own(self) -> list[Buffer]:
        """The arrays between kernels."""
        passed = {*self.test.nest.inputs, *self.outputs}
        return [buffer for buffer in self.test.buffers if buffer not in passed]

    @property
    def parameters(self) -> list[str]:
        made = [f"const {_passed(b)} *{self.id(b)}" for b in self.test.nest.inputs]
        made += [f"{_passed(b)} *{self.id(b)}" for b in self.outputs]
        return [*made, *(f"int64_t {self.id(symbol)}" for symbol in self.symbols), "int threads"]

    def id(self, thing: Buffer | Symbol) -> str:
        return self.names(thing, thing.name)

    # ----------------------------------------------------------- declarations

    def declarations(self) -> list[str]:
        """The prototypes, with comments on their parameters."""
        lines = ["#ifdef __cplusplus", 'extern "C" {', "#endif", "", *self._comment()]
        lines += [*self._head(";"), ""]
        lines.append("/* The kernels, for arrays with any strides. These are in elements: of every")
        lines.append("   axis of every buffer, in order. */")
        for kernel in self.test.nest.kernels:
            buffers = ", ".join(
                f"{b.name}[{', '.join(a.dim.name for a in b.axes)}]" for b in kernel.global_buffers
            )
            sizes = ", ".join(map(str, kernel.symbols)) or "none"
            lines.append(f"/* {comment(f'buffers: {buffers}; sizes: {sizes}.')} */")
            lines.append(f"int {kernel.name}(void *const *buffers, const int64_t *strides,")
            lines.append(" " * (len(kernel.name) + 5) + "const int64_t *sizes, int threads);")
        return [*lines, "", "#ifdef __cplusplus", "}", "#endif"]

    def _head(self, end: str) -> list[str]:
        return wrapped(f"int {self.name}({', '.join(self.parameters)}){end}")

    def _comment(self) -> list[str]:
        lines = [f"/* {', '.join(b.name for b in self.outputs)} of {self.test.nest.name}."]
        lines += [f"   {self._described(b)}, read" for b in self.test.nest.inputs]
        lines += [f"   {self._described(b)}, written" for b in self.outputs]
        lines.append("   Arrays have no gaps; their last axis is the innermost.")
        lines.append("   threads: how many run; with OpenMP only.")
        looks_up = any(is_placed(s) for k in self.test.nest.kernels for s in k.statements)
        outside = f", {OUTSIDE} if a place is beyond its axis" if looks_up else ""
        return [*lines, f"   Returns 0 if all is well, 1 if memory is short{outside}. */"]

    def _described(self, buffer: Buffer) -> str:
        axes = ", ".join(str(self.lengths.along(buffer.axes[at])) for at in self.test.order(buffer))
        return f"{self.id(buffer)}[{axes}]: {buffer.dtype}"

    # ------------------------------------------------------------- definition

    def definition(self) -> list[str]:
        lines = [*self._head(" {"), "    int failed = 0;"]
        for buffer in self.own:
            kind, name = C_STORED[buffer.dtype], self.id(buffer)
            lines.append(f"    {kind} *const {name} = ({kind} *)malloc({self._bytes(buffer)} + 1);")
            lines.append(f"    failed |= {name} == NULL;")
        for step in self.test.steps():
            if isinstance(step, Clear):
                lines += self._clear(step.buffer)
            else:
                lines += [line for kernel in step.kernels for line in self._call(kernel)]
        lines += [f"    free({self.id(buffer)});" for buffer in self.own]
        return [*lines, "    return failed;", "}"]

    def _clear(self, buffer: Buffer) -> list[str]:
        return [f"    if (!failed) memset({self.id(buffer)}, 0, {self._bytes(buffer)});"]

    def _call(self, kernel: Kernel) -> list[str]:
        buffers = kernel.global_buffers
        addresses = ", ".join(f"(void *){self.id(b)}" for b in buffers)
        strides = [str(stride) for b in buffers for stride in self._strides(b)]
        sizes = [self.id(symbol) for symbol in kernel.symbols]
        return [
            "    if (!failed) {",
            *wrapped(f"        void *const buffers[] = {{{addresses}}};"),
            *wrapped(f"        const int64_t strides[] = {{{', '.join([*strides, '0'])}}};"),
            f"        const int64_t sizes[] = {{{', '.join([*sizes, '0'])}}};",
            f"        failed = {kernel.name}(buffers, strides, sizes, threads);",
            "    }",
        ]

    @cached_property
    def lengths(self) -> Lengths:
        return Lengths(self.id, self._block, "BLOCKS")

    def _block(self, dim: Dim) -> LengthText:
        if not dim.packed:
            return 1
        if dim.unit:
            return self.lengths.extent(dim.axis)
        return self.test.tiling.tiles.get(dim, DEFAULT_TILE)

    def _strides(self, buffer: Buffer) -> list[LengthText]:
        """The strides of an array without gaps."""
        lengths = [self.lengths.along(axis) for axis in buffer.axes]
        order = self.test.order(buffer)
        inner = {at: order[number + 1 :] for number, at in enumerate(order)}
        return [product(lengths[i] for i in inner[at]) for at in range(len(lengths))]

    def _bytes(self, buffer: Buffer) -> str:
        count = product(self.lengths.along(axis) for axis in buffer.axes)
        return f"(size_t)({count}) * sizeof({C_STORED[buffer.dtype]})"


def _passed(buffer: Buffer) -> str:
    """The C type of an array's elements as a parameter."""
    return "void" if buffer.dtype in NARROW else C_STORED[buffer.dtype]


# ------------------------------------------------------------------------ the test


def _main(run: RunFunction) -> list[str]:
    test = run.test
    lines = [*C_HELPERS.splitlines()]
    below = test.places_below
    lines += ["", "int main(int argc, char **argv) {"]
    lines.append("    int threads = argc > 1 ? atoi(argv[1]) : 1;")
    for number, buffer in enumerate((*test.nest.inputs, *run.outputs)):
        kind, name, count = C_STORED[buffer.dtype], array_name(buffer), test.count(buffer)
        axes = ", ".join(
            f"{a.dim} {n}" for a, n in zip(buffer.axes, test.shape(buffer), strict=True)
        )
        made = f"({kind} *)room({count}, sizeof({kind}))"
        lines.append(f"    {kind} *{name} = {made}; /* {comment(axes)} */")
        if buffer in test.nest.inputs:
            sample = f"sample((uint64_t){number} << 32 | (uint64_t)i)"
            value = _value(buffer.dtype, sample, below.get(buffer))
            lines.append(f"    for (int64_t i = 0; i < {count}; i++) {name}[i] = {value};")
    arguments = [array_name(b) for b in (*test.nest.inputs, *run.outputs)]
    arguments += [str(test.tiling.extents.sizes[symbol]) for symbol in run.symbols]
    lines += [
        *wrapped(f"    int failed = {run.name}({', '.join([*arguments, 'threads'])});"),
        "    if (failed) {",
        f'        fprintf(stderr, "{run.name} returned %d\\n", failed);',
        "        return 1;",
        "    }",
        "    int good = 1;",
    ]
    for buffer, wanted in test.outputs:
        lines += _check(buffer, wanted)
    return [*lines, '    puts(good ? "ok" : "WRONG");', "    return !good;", "}"]


def _value(dtype: DType, number: str, below: int | None) -> str:
    if below is not None:
        return f"({C_TYPES[dtype]})((1.0 + {number}) / 2.0 * {below})"
    if dtype is DType.bfloat16:
        return f"narrowed_bfloat16((float){number})"
    if dtype is DType.bool_:
        return f"({C_TYPES[dtype]})({number} > 0.0)"
    if not dtype.is_float:
        return f"({C_TYPES[dtype]})(4.0 * {number})"
    return f"({C_STORED[dtype]}){number}"


def _check(buffer: Buffer, wanted: ExpectedElements) -> list[str]:
    name, count = array_name(buffer), len(wanted.at)
    read = "widened_bfloat16({})" if buffer.dtype is DType.bfloat16 else "(double){}"
    places = ", ".join(map(str, wanted.at)) or "0"
    values = ", ".join(map(_number, wanted.values)) or "0"
    element = read.format(f"{name}[at[i]]")
    return [
        "    {",
        *wrapped(f"        static const int64_t at[] = {{{places}}};"),
        *wrapped(f"        static const double wanted[] = {{{values}}};"),
        f"        double found[{max(count, 1)}];",
        f"        for (int i = 0; i < {count}; i++) found[i] = {element};",
        f'        good &= check("{buffer.name}", found, wanted, {count}, {wanted.scale!r}, '
        f"{TOLERANCE[buffer.dtype]!r});",
        "    }",
    ]


def _number(x: float) -> str:
    if math.isnan(x):
        return "NAN"
    if math.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    return repr(x)
