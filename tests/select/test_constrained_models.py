"""Constraints on the parts of a model that torch.compile compiles."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BadConstraint, WrongKind
from blockbuster_fusion.torch.backend import backend, options_from
from blockbuster_fusion.torch.compiled_graph import CompiledGraph

bb.register_backend()


class Gated(nn.Module):
    """A norm and a gated layer, of sizes that no tile divides."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(37)
        self.gate, self.up = nn.Linear(37, 53), nn.Linear(37, 53)
        self.down = nn.Linear(53, 37)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(torch.relu(self.gate(h)) * self.up(h))


def parts_of(**options: Any) -> tuple[list[set[str]], list[str]]:
    """The operators of each kernel under some options, and all of them; the numbers are right."""
    torch.manual_seed(0)
    model, x = Gated().eval(), torch.randn(19, 37)
    graphs: list[CompiledGraph] = []

    def watched(module: Any, examples: Any) -> Any:
        own = {"strict": True, "library": "never", **options}
        return backend(module, examples, options=own, watcher=graphs.append)

    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model, backend=watched)(x)
        eager = model(x)
        exact = model.double()(x.double())
    error = (eager - exact).abs().max()
    assert (found - exact).abs().max() <= 2 * error + 1e-6 * exact.abs().max()
    (graph,) = graphs
    parts = [{n.name for n in fused.part.covered} for fused in graph.fused]
    return parts, [name for own in parts for name in own]


def part_with(parts: list[set[str]], name: str) -> set[str]:
    return next(own for own in parts if name in own)


def test_apart() -> None:
    parts, _ = parts_of(apart=[["addmm*", "add*"]])
    products = [own for own in parts if any(name.startswith("addmm") for name in own)]
    assert len(products) == 3


def test_together() -> None:
    wanted = {"relu", "addmm", "mul"}
    apart, names = parts_of(apart=[["relu", "addmm"]])
    assert wanted <= {*names}
    assert "relu" not in part_with(apart, "addmm")
    parts, _ = parts_of(together=[["relu", "addmm"]])
    assert "relu" in part_with(parts, "addmm")


def test_materialise() -> None:
    parts, _ = parts_of(materialise=["mul"])
    assert "addmm_2" not in part_with(parts, "mul")


@pytest.mark.parametrize("library", ["auto", "never"])
def test_an_unknown_name_gets_a_sentence(library: str) -> None:
    with pytest.raises(Exception, match="no operator has this name") as caught:
        parts_of(together=[["nothing", "relu"]], library=library, strict=False)
    assert BadConstraint.__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("together", "mm"),
        ("together", ["mm"]),
        ("together", [["mm", 1]]),
        ("apart", {"mm": "add"}),
        ("apart", [1]),
        ("materialise", "mm"),
        ("materialise", [["mm"]]),
        ("candidates", "many"),
        ("candidates", -1),
        ("candidates", True),
    ],
)
def test_a_wrong_type_gets_a_sentence(option: str, given: object) -> None:
    with pytest.raises(WrongKind, match="torch.compile: takes .*" + option):
        options_from(None, {option: given})


def test_lists_become_tuples() -> None:
    made = options_from(None, {"together": [["a", "b"]], "apart": (("c",),), "materialise": ["d"]})
    assert made.wishes.together == (("a", "b"),)
    assert made.wishes.apart == (("c",),)
    assert made.wishes.materialise == ("d",)
