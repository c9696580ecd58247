"""Compiles Triton's kernels for GPUs of other machines, to see what they need."""

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.shared_memory import shared_limit
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.printers.triton.launch_plan import LaunchPlan, axis_length, options_of
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.triton.descriptors import without_others
from blockbuster_fusion.runtime.triton.launch import Launcher
from blockbuster_fusion.runtime.triton.modules import load

POINTERS = {
    DType.float64: "*fp64",
    DType.float32: "*fp32",
    DType.float16: "*fp16",
    DType.bfloat16: "*bf16",
    DType.int64: "*i64",
    DType.int32: "*i32",
    DType.bool_: "*i1",
}


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one program of a kernel; registers are spilled to `stack`."""

    shared: int
    registers: int
    stack: int
    assembly: str

    def __str__(self) -> str:
        return f"{self.shared} bytes shared, {self.registers} registers, {self.stack} bytes spilled"


def compile_for(
    nest: Nest,
    source: str,
    capability: int,
    *,
    sizes: Mapping[str, int],
    tiles: Mapping[Dim, int] | None = None,
    options: Mapping[str, int] | None = None,
) -> dict[str, Resources]:
    """Every launch compiled for `sm_<capability>`, as for contiguous tensors."""
    module = load(source)
    made = {}
    for launched in nest.launches:
        function = getattr(module, launched.name)
        launcher = Launcher(launched, function, shared_limit(capability))
        own = options_of(launched, nest.kernels, options or {})
        plan = launcher.plan(sizes, tiles or {}, own)
        shapes = ([axis_length(a, sizes, tiles or {}) for a in b.axes] for b in launcher.buffers)
        strides = [torch.empty(shape, device="meta").stride() for shape in shapes]
        made[launched.name] = _compiled(launcher, plan, strides, capability)
    return made


def _compiled(
    launcher: Launcher, plan: LaunchPlan, strides: Sequence[Sequence[int]], capability: int
) -> Resources:
    function, names = launcher.function, launcher.names
    numbers, _ = launcher.numbers(plan, strides)
    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}
    pointers = {name: POINTERS[buffer.dtype] for buffer, name in names.pointers.items()}
    matrices = launcher.matrices(plan, strides)
    for at, matrix in without_others(matrices).items():
        name = function.params[at].name
        block = ", ".join(map(str, (2, *matrix.block) if matrix.is_joined else matrix.block))
        pointers[name] = f"tensordesc<{pointers[name][1:]}[{block}]>"
        if matrix.is_joined:
            pointers[function.params[matrix.other].name] = "i32"
    innermost = {strides[-1] for strides in names.strides.values() if strides}
    for at, parameter in enumerate(function.params):
        name = parameter.name
        known = numbers if parameter.is_constexpr else plan.constants
        value = 1 if name in innermost else known.get(name)
        if parameter.is_constexpr or value == 1:  # Triton compiles a 1 in
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = pointers.get(name, "i32")
        if at not in matrices and (not isinstance(value, int) or value % 16 == 0):
            attributes[(at,)] = [["tt.divisibility", 16]]
    with doing("the Triton compiler"):
        compiled = triton.compile(
            ASTSource(function, signature, constants, attributes),
            target=GPUTarget("cuda", capability, 32),
            options=dict(plan.options),
        )
    usage = _resource_usage(compiled.asm["cubin"])
    return Resources(
        compiled.metadata.shared, usage["REG"], usage["STACK"] + usage["LOCAL"], compiled.asm["ptx"]
    )


def _resource_usage(binary: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(binary)
        command = [str(tool), "--dump-resource-usage", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)
    return {"REG": 0, "STACK": 0, "LOCAL": 0} | {name: int(number) for name, number in found}


def symbols(nest: Nest) -> set[str]:
    """The names of the sizes that a nest's kernels are launched with."""
    return {symbol.name for kernel in nest.kernels for symbol in kernel.symbols}
