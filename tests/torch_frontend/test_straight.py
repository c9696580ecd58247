"""A program as its allocations and launches does what the program does."""

import pytest
import torch
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.tensors import library_on
from blockbuster_fusion.torch.plan.straight import straight

CPU = library_on(torch.device("cpu"))
PROGRAMS = {
    "one kernel": (lambda X: bb.ops.softmax(X), ("M N",)),
    "turned": (lambda X: bb.ops.transpose(X * 2), ("M N",)),
    "two results": (lambda X: (X + 1, bb.ops.sum(X, -1)), ("M N",)),
    "two kernels": (lambda X, Y: bb.ops.softmax(X @ Y) @ bb.ops.exp(X), ("M N", "N M")),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_results(name: str) -> None:
    function, specs = PROGRAMS[name]
    lengths = {"M": 7, "N": 19}
    compiled = bb.compile(bb.trace(function, *specs), sizes=lengths, target="cpu")
    runner = compiled.runner
    assert isinstance(runner, Compiled)

    def inputs() -> list[Tensor]:
        return [torch.randn([lengths[axis] for axis in spec.split()]) for spec in specs]

    first = inputs()
    runner.run(first, library=CPU)
    program = straight(runner.bound_for(first, (), CPU), CPU)
    assert program is not None
    for _ in range(3):
        given = inputs()
        wanted, found = runner.run(given, library=CPU), program(given)
        for x, y in zip(wanted, found, strict=True):
            assert (x.shape, x.stride()) == (y.shape, y.stride())
            assert torch.equal(x, y)


def test_what_has_not_run_is_not_known() -> None:
    compiled = bb.compile(bb.trace(lambda X: X + 1, "M N"), target="cpu")
    runner = compiled.runner
    assert isinstance(runner, Compiled)
    assert straight(runner.bound_for([torch.randn(3, 4)], (), CPU), CPU) is None
