"""Attention in a plan is told by its operators and the arrays between them."""

import pytest

from blockbuster_fusion.explorer.attention_words import attention_words

torch = pytest.importorskip("torch")
import blockbuster_fusion as bb  # noqa: E402


def row(*operators: str, kind: str = "kernels") -> dict:
    named = {f"{name}_{at}": f"aten.{name}.default" for at, name in enumerate(operators)}
    return {"operators": named, "kind": kind, "kernels": ["k"] if kind == "kernels" else []}


def array(maker: int, reader: int | None, *, crosses: bool = False, size: int = 2000) -> dict:
    ends = {"from": maker, "to": reader, "crosses": crosses}
    return {**ends, "bytes": size, "reason": f"reason {maker}"}


@pytest.mark.parametrize(
    ("rows", "arrays", "own", "text"),
    [
        ([row("bmm", "_softmax", "bmm")], [], [0], "1 kernel; scores are not stored"),
        (
            [row("bmm"), row("div", "_softmax", "bmm")],
            [array(0, 1)],
            [0, 1],
            "2 kernels; 2 kB of scores are stored, because: reason 0",
        ),
        (
            [row("bmm"), row("div"), row("_softmax", kind="library"), row("baddbmm")],
            [array(0, 1), array(1, 2, size=3000), array(2, 3)],
            [0, 1, 2, 3],
            "3 kernels and 1 step of PyTorch's; 3 kB of scores are stored, because: reason 1",
        ),
    ],
)
def test_a_softmax_between_two_products(rows, arrays, own, text) -> None:
    assert [*attention_words(rows, arrays)] == [{"rows": own, "text": text}]


@pytest.mark.parametrize(
    ("rows", "arrays"),
    [
        ([row("bmm", "_softmax")], [array(0, None)]),
        ([row("addmm"), row("_softmax"), row("bmm")], [array(0, 1), array(1, 2)]),
        ([row("bmm"), row("_softmax", "bmm")], [array(0, 1, crosses=True)]),
        ([row("_softmax", "bmm", "gelu")], []),
    ],
)
def test_other_softmaxes_are_not_attention(rows, arrays) -> None:
    assert [*attention_words(rows, arrays)] == []


def test_a_model_s_attention_is_found() -> None:
    def attention(q, k, v):
        return (q @ k.transpose(1, 2)).softmax(-1) @ v

    with torch.no_grad():
        made = bb.explore(attention, *(torch.ones(2, 8, 4) for _ in range(3)))
    (found,) = made.data["attention"]
    assert "scores" in found["text"]
