"""The device that a part of a model runs on, where there may be several GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

from blockbuster_fusion.torch import compile_graph, part_choices
from blockbuster_fusion.torch.options import Options, device_of
from blockbuster_fusion.torch.rivals import timing
from blockbuster_fusion.torch.rivals.timing import Seconds, Timing
from helpers.offline import captured

SECOND = torch.device("cuda", 1)


def part_of(*devices: tuple[str, tuple[int, ...]]) -> list[torch.fx.Node]:
    """Nodes whose results have these devices and shapes."""
    graph, made = Graph(), []
    with FakeTensorMode():
        for device, shape in devices:
            node = graph.call_function(torch.ops.aten.relu.default)
            node.meta["val"] = torch.empty(shape, device=device)
            made.append(node)
    return made


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ([("cuda", ())], "cuda"),
        ([("cuda", ()), ("cuda", (3,))], "cuda"),
        ([("cpu", ()), ("cuda", ())], "cuda"),
        ([("cpu", (3,))], "cpu"),
        ([("cpu", ())], "cpu"),
    ],
)
def test_a_part_whose_results_are_numbers_runs_where_they_are(
    devices: list[tuple[str, tuple[int, ...]]], wanted: str
) -> None:
    """A loss is one number on the GPU: a part that makes only that was compiled for the CPU."""
    assert device_of(part_of(*devices)).type == wanted


class GPUs:
    """Several GPUs that are not here, of which one is the current one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device", self.device)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before


def test_calls_are_timed_on_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of another GPU told next to nothing."""
    gpus, found = GPUs(monkeypatch), list[int]()

    def noted(call: object) -> Timing:
        found.append(gpus.current)
        return Timing(Seconds(1.0), is_sure=True)

    monkeypatch.setattr(timing, "_on_gpu", noted)
    timing.timed(lambda: found.append(gpus.current), SECOND)
    assert found == [1, 1]
    assert gpus.current == 0


def test_a_graph_is_compiled_for_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, found = part_of(("cuda:1", (3, 4)))[0].graph, list[int]()
    gpus = GPUs(monkeypatch)
    monkeypatch.setattr(compile_graph, "_compiled", lambda *_: found.append(gpus.current))
    compile_graph.compile_graph(GraphModule({}, graph))
    assert found == [1]


@pytest.mark.parametrize("name", ["capability_of", "gpu_name"])
def test_kinds_of_gpus_have_choices_of_their_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model took the kernels of another GPU, for which there was too little shared memory."""

    def model(x: Tensor) -> Tensor:
        return x.softmax(-1)

    (graph,) = captured(model, torch.randn(4, 8))
    keys = set()
    for given in (80, 86):
        monkeypatch.setattr(part_choices, name, lambda *_, given=given: given)
        parts = graph.parts(Options(target="cuda"))
        nodes = [n for n in parts.analysis.module.graph.nodes if n.op == "call_function"]
        keys.add(parts.key(parts.program(nodes), "cuda"))
    assert len(keys) == 2
