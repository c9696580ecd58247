"""Pages of unusual programs, and of arguments that do not go together."""

import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.explorer import model


def test_a_safety_pass_may_decide_on_what_it_has_made() -> None:
    made = bb.explore(lambda x: ops.layernorm(ops.layernorm(x)), x="M D", times=False)
    assert "a common part of" in made.html()


def test_an_axis_may_have_no_elements() -> None:
    assert bb.explore(lambda x: ops.softmax(x), x="M D", sizes={"M": 0}).html()


def test_an_explanation_is_taken_alone() -> None:
    x = torch.randn(4, 8)
    found = bb.explain(lambda x: x.softmax(-1), x, options={"library": "never"})
    assert "softmax" in bb.explore(found).html()
    with pytest.raises(WrongKind, match="an explanation alone"):
        bb.explore(found, measure=True)


def test_a_kernel_that_cannot_be_drawn_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("a node")

    monkeypatch.setattr(model, "part_data", fails)
    made = bb.explore(lambda x: x.softmax(-1), torch.randn(4, 8), options={"library": "never"})
    assert "softmax" in made.html()
    assert "has no page: KeyError" in caplog.text
