"""Standalone Triton files: a module of kernels, with a `main` that tests them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blockbuster_fusion.codegen.nest import Buffer, Clear
from blockbuster_fusion.codegen.standalone import TOLERANCE, Test, array_name, wrapped
from blockbuster_fusion.codegen.standalone_helpers import TRITON_HELPERS
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.naming import comment_lines


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """How a kernel is launched: its grid, arguments by name, and scratch by the pointer's name."""

    function: str
    grid: int
    pointers: Mapping[str, Buffer]
    numbers: Mapping[str, int | bool]
    scratch: Mapping[str, tuple[DType, int]]
    options: Mapping[str, int]


INTERPRETER = "Triton's interpreter computes bfloat16 wrongly: run this on a GPU"


def triton_file(
    source: str, test: Test, launches: Sequence[TritonLaunch], lines: Sequence[str]
) -> str:
    """A Python file with Triton kernels and a `main` that tests them."""
    quoted = "\n".join(comment_lines(lines))
    imports = source.lstrip().replace(
        "import triton\n", "import sys\n\nimport torch\nimport triton\n", 1
    )
    parts = [f'"""{quoted}\n"""\n', imports.rstrip(), "", "", TRITON_HELPERS, "", ""]
    parts += ['DEVICE = "cuda" if torch.cuda.is_available() else "cpu"']
    parts += ["INTERPRETED = bool(triton.knobs.runtime.interpret)", "", ""]
    return "\n".join([*parts, *_triton_main(test, launches), ""])


def _triton_main(test: Test, launches: Sequence[TritonLaunch]) -> list[str]:
    below = test.places_below
    lines = ["def main():", *_refusals(test)]
    for number, buffer in enumerate(test.buffers):
        shape, dtype, name = test.shape(buffer), f"torch.{buffer.dtype}", array_name(buffer)
        if buffer in test.nest.inputs:
            places = f", {below[buffer]}" if buffer in below else ""
            lines.append(f"    {name} = sample({number}, {shape}, {dtype}{places})")
            continue
        order = test.order(buffer)
        laid = tuple(shape[at] for at in order)
        made = f"torch.empty({laid}, dtype={dtype}, device=DEVICE)"
        turned = [order.index(at) for at in range(len(order))]
        turn = "" if turned == sorted(turned) else f".permute({turned})"
        lines.append(f"    {name} = {made}{turn}")
    remaining = list(launches)
    for step in test.steps():
        if isinstance(step, Clear):
            lines.append(f"    {array_name(step.buffer)}.zero_()")
        else:
            lines += _triton_step(remaining.pop(0))
    lines.append("    good = True")
    for buffer, wanted in test.outputs:
        order = test.order(buffer)
        name = array_name(buffer)
        laid_out = name if list(order) == sorted(order) else f"{name}.permute({list(order)})"
        values = ", ".join(map(_number, wanted.values))
        lines += wrapped(
            f'    good &= check("{buffer.name}", {laid_out}, {list(wanted.at)}, '
            f"[{values}], {wanted.scale!r}, {TOLERANCE[buffer.dtype]!r})"
        )
    lines += ['    print("ok" if good else "WRONG")', "    return 0 if good else 1", "", ""]
    return [*lines, 'if __name__ == "__main__":', "    raise SystemExit(main())"]


def _number(x: float) -> str:
    return repr(x) if math.isfinite(x) else f'float("{x}")'


def uses_bfloat16(test: Test) -> bool:
    """Whether a test has arrays of bfloat16, which Triton's interpreter cannot compute with."""
    return any(buffer.dtype is DType.bfloat16 for buffer in test.buffers)


def _refusals(test: Test) -> list[str]:
    """What a file's main says where the kernels cannot be tested."""
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


def _triton_step(launch: TritonLaunch) -> list[str]:
    arguments = [f"{name}={array_name(buffer)}" for name, buffer in launch.pointers.items()]
    arguments += [
        f"{name}=torch.empty({count}, dtype=torch.{dtype}, device=DEVICE)"
        for name, (dtype, count) in launch.scratch.items()
    ]
    arguments += [f"{name}={value}" for name, value in launch.numbers.items()]
    head = f"    launch({launch.function}, {launch.grid}, {dict(launch.options)}, "
    return wrapped(f"{head}{', '.join(arguments)})")
