"""Small kernels that Triton compiles as one."""

import os
import subprocess
import sys

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.nest.nest import Load, Store
from blockbuster_fusion.nest.passes.merge_kernels import MOST_STATEMENTS, merge_kernels
from blockbuster_fusion.nest.verify import verify_nest
from helpers.deep_programs import chain

SIZES = {"M": 20, "N": 20, "P": 20}


def kernels(program: bb.ArrayProgram, **sizes: int) -> list[int]:
    """The number of statements of each kernel."""
    nest, _ = choose(Request(program, target="cuda", sizes=sizes))[0].scheduled()
    verify_nest(nest)
    return [sum(1 for _ in kernel.statements) for kernel in nest.kernels]


def three() -> bb.ArrayProgram:
    return bb.trace(
        lambda A, B, C: {"X": A * 2, "Y": B + 1, "Z": bb.ops.sin(C)}, A="M", B="N", C="P"
    )


def test_equal_grids_go_together() -> None:
    assert kernels(three(), **SIZES) == [9]
    assert kernels(three(), M=20, N=20, P=30) == [6, 3]
    assert kernels(three()) == [3, 3, 3]  # their sizes may differ


def test_no_kernel_reads_what_it_writes() -> None:
    """The programs of a grid do not wait for one another."""
    request = Request(chain(400), target="cuda", sizes={"M": 20, "N": 20})
    nest, tiles = choose(request)[0].scheduled()
    assert len(nest.kernels) > 1
    assert len({tuple(index.dim for index in kernel.grid) for kernel in nest.kernels}) == 1
    (merged,) = merge_kernels(nest, tiles, most=10_000).kernels
    stores = [s for s in merged.statements if isinstance(s, Store)]
    loads = [s for s in merged.statements if isinstance(s, Load)]
    assert not {s.target.buffer for s in stores} & {s.source.buffer for s in loads}


def test_the_largest_kernel() -> None:
    names = [f"A{number}" for number in range(60)]
    inputs = ", ".join(names)
    function = eval(f"lambda {inputs}: {{'O' + str(i): x * 2 for i, x in enumerate(({inputs}))}}")
    program = bb.trace(function, **{name: f"M{i}" for i, name in enumerate(names)})
    found = kernels(program, **{f"M{i}": 20 for i in range(60)})
    assert sum(found) == 180
    assert found == [MOST_STATEMENTS // 3 * 3, 180 - MOST_STATEMENTS // 3 * 3]


SCRIPT = f"""
import torch
import blockbuster_fusion as bb
program = bb.trace(
    lambda A, B, C: {{"X": A * 2, "Y": B + 1, "Z": bb.ops.sin(C)}}, A="M", B="N", C="P"
)
device = "cuda" if torch.cuda.is_available() else "cpu"
kernel = bb.compile(program, target="cuda", sizes={SIZES})
assert len(kernel.nest.kernels) == 1
A, B, C = (torch.randn(20, device=device) for _ in range(3))
X, Y, Z = kernel(A, B, C)
torch.testing.assert_close((X, Y, Z), (A * 2, B + 1, C.sin()))
print("right")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")
def test_what_goes_together_is_right() -> None:
    import torch

    environment = dict(os.environ)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "right\n", done.stderr
