"""Equal layers of a plan are one fold, by that which runs; others say how they differ."""

from dataclasses import replace

import pytest

from blockbuster_fusion.plans.folds import Fold, digest, folds, titled
from blockbuster_fusion.plans.plan import Kernels, Step
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds


def step(region: str, name: str = "gelu", number: int = 0) -> Step:
    """A step whose names in the graph differ from layer to layer."""
    operators = {f"{name}_{number}": f"aten.{name}.default"}
    return Step("misc", name, operators, {}, {}, 8, 4, region=region, lines=(f"m.py:{number}",))


def layered(*activations: str) -> list[Step]:
    """Two steps for each layer, and one before and behind them."""
    inner = [
        step(f"layers.{at}", name, at)
        for at, activation in enumerate(activations)
        for name in ("linear", activation)
    ]
    return [step("", "embedding"), *inner, step("", "topk")]


def test_equal_layers_are_one_fold() -> None:
    found = folds(layered(*["gelu"] * 12))
    assert [fold.title for fold in found] == [
        "around the layers",
        "layers 0–11",
        "around the layers",
    ]
    assert found[1].runs == tuple((2 * at + 1, 2 * at + 2) for at in range(12))
    assert not any(fold.differs for fold in found)


def test_one_layer_that_differs_is_told() -> None:
    """It stands where it runs first, and the others are one fold around it."""
    activations = ["gelu"] * 12
    activations[5] = "relu"
    _, usual, odd, _ = folds(layered(*activations))
    assert (usual.title, len(usual.runs), usual.differs) == ("layers 0–4, 6–11", 11, "")
    assert (odd.title, odd.runs) == ("layers.5", ((11, 12),))
    assert odd.differs == "unlike layers 0–4, 6–11: relu in place of gelu"


def test_differences_in_words() -> None:
    one, two = step("h.0", "gelu"), step("h.1", "gelu")
    more = [step("h.2", "gelu"), step("h.2", "topk")]
    assert folds([one, two, *more])[-1].differs == "unlike h 0–1: topk as well"
    less = [step(f"h.{at}", name) for at in range(2) for name in ("gelu", "topk")]
    assert folds([*less, step("h.2", "gelu")])[-1].differs == "unlike h 0–1: no topk"
    wide = replace(step("h.2", "gelu"), bytes_read=16)
    words = "unlike h 0–1: the same steps with other sizes or configurations"
    assert folds([one, two, wide])[-1].differs == words


def test_layers_without_an_equal_one_have_no_usual() -> None:
    found = folds(layered("gelu", "relu", "tanh"))
    assert [fold.title for fold in found[1:-1]] == ["layers.0", "layers.1", "layers.2"]
    assert not any(fold.differs for fold in found)


def test_lists_are_not_mixed() -> None:
    names = [f"{kind}.layers.{at}" for kind in ("encoder", "decoder") for at in range(2)]
    found = folds([step(name) for name in names])
    assert [fold.title for fold in found] == ["encoder.layers 0–1", "decoder.layers 0–1"]


def test_every_step_is_in_one_fold() -> None:
    steps = layered(*["gelu", "relu", "gelu", "tanh", "relu", "gelu"] * 3)
    places = [at for fold in folds(steps) for run in fold.runs for at in run]
    assert sorted(places) == [*range(len(steps))]
    assert folds([]) == ()


def test_a_layer_that_is_left_and_entered_again() -> None:
    found = folds([step("h.0"), step("", "mask"), step("h.0"), step("h.1")])
    assert found[0] == Fold(("h.0", "h.0", "h.1"), ((0,), (2,), (3,)))
    assert found[0].title == "h 0–1"


def test_a_digest_is_of_that_which_runs() -> None:
    one = step("layers.0", number=0)
    assert digest(one) == digest(replace(step("layers.7", number=7), measured=Seconds(1.0)))
    assert digest(one) != digest(replace(one, kind="library"))
    assert digest(one) != digest(replace(one, flops=1))
    kernels = [Kernels("a", Config(0)), Kernels("b", Config(0)), Kernels("a", Config(1))]
    made = [replace(one, kind="kernels", kernels=found) for found in kernels]
    assert len({digest(x) for x in (one, *made)}) == 4


@pytest.mark.parametrize(
    ("regions", "title"),
    [
        ([""], "around the layers"),
        (["layers.3"], "layers.3"),
        (["layers.0", "layers.1", "layers.10"], "layers 0–1, 10"),
        (["layers.2", "layers.0", "layers.1"], "layers 0–2"),
        (["stages.0.blocks.1", "stages.0.blocks.2"], "stages.0.blocks 1–2"),
        (["0", "1"], "0–1"),
        (["", "layers.0", "layers.1"], "around the layers, layers 0–1"),
        (["h.0.attn", "h.1.attn"], "h 0–1.attn"),
    ],
)
def test_titles(regions: list[str], title: str) -> None:
    assert titled(regions) == title
