"""The cost of a call of a compiled graph, weighed against what its kernels win."""

from types import SimpleNamespace
from typing import Any

import pytest

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.rivals.choose import Chooser

COST = 25e-6


def chooser(target: str, library: Seconds, kernels: Seconds, rest: Seconds | None = None) -> Any:
    """As much of a chooser as weighs a call: one part won, and another one stays with PyTorch.

    An operator that the graph does not hold any more counts for nothing.
    """
    won, gone = (SimpleNamespace(library=library, kernels=kernels, nodes=()) for _ in "12")
    left = {} if rest is None else dict.fromkeys("ab", SimpleNamespace(library=rest))
    module = SimpleNamespace(graph=SimpleNamespace(nodes=["a", "b"]))
    made: Any = Chooser.__new__(Chooser)
    made.machine = SimpleNamespace(target=target)
    made.parts = SimpleNamespace(
        libraries={**left, "gone": gone}, analysis=SimpleNamespace(module=module)
    )
    made.won = [((), won)]
    made.gain, made.recognised = library.total() - kernels.total(), 0.0
    return made


@pytest.mark.parametrize(
    ("library", "kernels", "pays"),
    [
        (Seconds(59e-6, 20e-6), Seconds(36e-6, 5e-6), True),  # wins less than a call costs
        (Seconds(20e-6, 20e-6), Seconds(10e-6, 5e-6), False),  # the host takes 30 µs then
        (Seconds(5e-6, 90e-6), Seconds(2e-6, 5e-6), True),  # many launches become one
    ],
)
def test_a_gpu_works_while_the_host_calls(library: Seconds, kernels: Seconds, pays: bool) -> None:
    assert Chooser.pays(chooser("cuda", library, kernels), COST) is pays


def test_the_rest_of_a_graph_hides_the_call() -> None:
    won = Seconds(20e-6, 10e-6), Seconds(10e-6, 5e-6)
    assert not Chooser.pays(chooser("cuda", *won), COST)
    assert Chooser.pays(chooser("cuda", *won, Seconds(500e-6, 100e-6)), COST)


def test_a_cpu_calls_and_works_in_turns() -> None:
    own = chooser("cpu", Seconds(59e-6), Seconds(36e-6), Seconds(500e-6))
    assert not Chooser.pays(own, COST)
    assert Chooser.pays(own, 20e-6)
