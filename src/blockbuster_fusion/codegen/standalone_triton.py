"""Standalone Triton files: a module of kernels, with a `main` that tests them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blockbuster_fusion.codegen.nest import Buffer, Clear
from blockbuster_fusion.codegen.standalone import TOLERANCE, Test, array_name, wrapped
from blockbuster_fusion.ir.types import DType


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

_TRITON_HELPERS = '''\
# -------------------------------------------------------------------- the test of this file


def sample(number, shape, dtype, below=None):
    """Numbers between -1 and 1 that can be made again anywhere, or places below a number."""
    count = 1
    for length in shape:
        count *= length
    x = torch.arange(count, dtype=torch.int64) + (number << 32)
    x = x + (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    x = x ^ ((x >> 31) & (2**33 - 1))
    x = (((x >> 40) & (2**24 - 1)).double() / 2**23 - 1).reshape(shape)
    if below is not None:
        return ((1 + x) / 2 * below).to(dtype).to(DEVICE)
    if dtype is torch.bool:
        return (x > 0).to(DEVICE)
    return (x if dtype.is_floating_point else (4 * x).trunc()).to(dtype).to(DEVICE)


def launch(function, grid, options, **arguments):
    """Runs a kernel with those of the arguments that it takes."""
    taken = {name: arguments[name] for name in function.arg_names}
    if grid:
        function[(grid,)](**taken, **options)


def check(name, found, at, wanted, scale, tolerance):
    """Whether some elements are what they should be."""
    places = torch.tensor(at, dtype=torch.int64, device=found.device)
    found = found.reshape(-1)[places].double().cpu()
    wanted = torch.tensor(wanted, dtype=torch.float64)
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    errors = torch.where(same, 0.0, (found - wanted).abs() / scale)
    error = errors.max().item() if at else 0.0
    good = error <= tolerance
    word = "ok" if good else "WRONG"
    print(f"{name}: {word}, largest error {error:.2g} of {len(at)} elements ({tolerance} allowed)")
    return good'''


def triton_file(
    source: str, test: Test, launches: Sequence[TritonLaunch], comment: Sequence[str]
) -> str:
    """A Python file with Triton kernels and a `main` that tests them."""
    quoted = "\n".join(comment).replace("\\", "\\\\").replace('"""', "'''")
    imports = source.lstrip().replace(
        "import triton\n", "import sys\n\nimport torch\nimport triton\n", 1
    )
    parts = [f'"""{quoted}\n"""\n', imports.rstrip(), "", "", _TRITON_HELPERS, "", ""]
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
