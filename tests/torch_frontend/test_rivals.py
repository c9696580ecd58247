"""PyTorch's operators as rivals of kernels: what is chosen, why, and that results stay right."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import blockbuster_fusion as bb
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.plans.plan import rounded
from blockbuster_fusion.report.report import Time
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch import compiled_graph, machines
from blockbuster_fusion.torch.backend import options_from
from blockbuster_fusion.torch.rivals import library, part_weigher
from blockbuster_fusion.torch.rivals.attention import Attention, found_attention
from helpers.effort import crossed
from helpers.rivals import by_pytorch, is_product

FAST, SLOW = Seconds(1e-12), Seconds(1e3)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """Nothing that an earlier test compiled is used again, or makes sizes symbols."""
    torch._dynamo.reset()


@pytest.fixture(params=[FAST, SLOW], ids=["fast library", "slow library"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """A library whose operators all take the same time: faster or slower than any kernel."""
    pretend(monkeypatch, request.param)
    return request.param


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: Seconds) -> None:
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: seconds)


def by_name(name: str, others: Seconds) -> Callable[..., Seconds]:
    """A library that is fast at one operator."""
    return lambda self, function, *_: FAST if name in str(function) else others


class Block(torch.nn.Module):
    """A decoder layer with grouped heads."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.norm = torch.nn.LayerNorm(width)
        self.query = torch.nn.Linear(width, width)
        self.key = torch.nn.Linear(width, groups * self.each)
        self.value = torch.nn.Linear(width, groups * self.each)
        self.up, self.down = torch.nn.Linear(width, 48), torch.nn.Linear(48, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        h = self.norm(x)
        q = self.query(h).view(b, t, self.heads, self.each).transpose(1, 2)
        k = self.key(h).view(b, t, self.groups, self.each).transpose(1, 2)
        v = self.value(h).view(b, t, self.groups, self.each).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + y.transpose(1, 2).reshape(b, t, -1)
        return x + self.down(F.silu(self.up(x)))


def close(found: torch.Tensor, model: Callable[..., Any], *inputs: torch.Tensor) -> None:
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    module = model.double() if isinstance(model, torch.nn.Module) else model
    with torch.no_grad():
        exact = module(*wide)
    if isinstance(model, torch.nn.Module):
        model.float()
    assert (found - exact).norm() <= 1e-5 * exact.norm()


def test_the_faster_one_runs(pace: Seconds) -> None:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(2, 7, 32)
    compiled = bb.compile(model, x, library="auto")
    close(compiled(x), model, x)
    found = compiled.explanation
    assert not found.fallbacks
    if pace is FAST:
        assert not found.kernels
        assert found.coverage == 0
        assert any("silu" in name for choice in found.library for name in choice.operators)
    else:
        assert not found.library
        assert found.coverage == 1


def test_the_reason_has_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FAST)
    found = bb.explain(lambda x: x.exp() + 1, torch.randn(50, 70), options={"library": "auto"})
    (choice,) = found.library
    assert choice.library == FAST + FAST  # two operators
    assert choice.kernels.total() > FAST.total()
    assert choice.data()["kernel_seconds"] == choice.kernels.total()
    assert "measured; kernels" in str(choice)
    assert str(choice) in str(found)
    assert found.data()["library"] == [choice.data()]
    (layers,) = found.report.sections[0].layers
    for row in layers.rows:
        assert row.rival is not None
        assert row.rival.kernels == Time(rounded(choice.kernels).total(), "predicted")
        assert row.rival.library == Time(choice.library.total(), "measured")
        assert row.rival.reason == choice.reason
        assert row.rival.config == choice.config
    assert f"kernels {choice.kernels} predicted against 2e-06 µs [a]" in str(found)
    assert f"[a] {choice.reason}" in str(found).splitlines()


def test_cheap_operators_that_a_part_computes_anew_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only inputs are read by `sub`, so no part has it as its own; PyTorch would have to run it."""
    pretend(monkeypatch, FAST)
    inputs = torch.randn(50, 70), torch.randn(50), torch.randn(70)
    options = {"library": "auto"}
    found = bb.explain(lambda x, a, b: (x - a[:, None]) * b, *inputs, options=options)
    counted = sorted(name for choice in found.library for name in choice.operators)
    assert counted == ["aten.mul.Tensor", "aten.sub.Tensor"]
    assert sum((choice.library for choice in found.library), Seconds(0.0)) == FAST + FAST


@pytest.mark.parametrize("is_shared", [False, True])
def test_cheap_operators_that_pytorch_reads_are_judged_again(is_shared: bool) -> None:
    """No part had `(1 - mask) * -1e4` as its own: one kernel computes it for PyTorch's products."""

    def biased(mask: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        bias = (1 - mask) * -1e4
        return [bias @ w, bias.exp() @ v] if is_shared else [bias @ w]

    inputs = torch.rand(23, 37), torch.randn(37, 11), torch.randn(37, 5)
    with by_pytorch(is_product):
        compiled = bb.compile(biased, *inputs, library="auto")
        found = compiled.explanation
    assert {name for x in found.library for name in x.operators} == {"aten.mm.default"}
    assert len(found.kernels) == 1 + is_shared
    assert not found.fallbacks
    for made, exact in zip(compiled(*inputs), biased(*(x.double() for x in inputs)), strict=True):
        assert (made - exact).norm() <= 1e-5 * exact.norm()


def test_the_rest_is_left_to_pytorch_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FAST)
    inputs = torch.rand(23, 37), torch.randn(37, 11)
    options = {"library": "auto"}
    found = bb.explain(lambda mask, w: ((1 - mask) * -1e4) @ w, *inputs, options=options)
    assert not found.kernels
    counted = sorted(name for choice in found.library for name in choice.operators)
    assert len(counted) == len({*counted}) == 3


def test_cheap_operators_of_several_parts_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FAST)

    def shared(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        mask = x * 2 + 1
        return (mask * y).softmax(-1) @ (mask * z).softmax(-1)

    inputs = [torch.randn(16, 16) for _ in range(3)]
    found = bb.explain(shared, *inputs, options={"library": "auto"})
    counted = [name for choice in found.library for name in choice.operators]
    assert counted.count("aten.add.Tensor") <= 1


def test_a_lookup_reads_its_results_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table costs nothing where few rows of it are read."""
    pretend(monkeypatch, FAST)
    options = {"library": "auto"}
    found = [
        bb.explain(
            lambda t, at: torch.nn.functional.embedding(at, t).exp(),
            *(torch.randn(rows, 64), torch.randint(100, (32,))),
            options=options,
        ).library[0]
        for rows in (100, 100_000)
    ]
    assert found[0].kernels == found[1].kernels


def test_a_kernel_computes_what_follows_the_products_of_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library that is fast at products only."""
    monkeypatch.setattr(library.LibraryTimes, "_timed", by_name("mm", Seconds(1.0)))
    torch.manual_seed(0)
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU()).eval(),
        torch.randn(5, 16),
    )
    compiled = bb.compile(model, x, library="auto")
    close(compiled(x), model, x)
    found = compiled.explanation
    assert [choice.operators[0] for choice in found.library] == ["aten.addmm.default"]
    assert [k.operators for k in found.kernels] == [("aten.gelu.default",)]


def test_measured_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """With max-autotune, kernels are compiled and measured."""
    pretend(monkeypatch, Seconds(5e-7))
    options = {"library": "auto"}
    x = torch.randn(64, 300)
    found = bb.explain(lambda x: x.softmax(-1), x, mode="max-autotune", options=options)
    (choice,) = found.library
    assert choice.basis in ("measured", "predicted")


def softmax_attention(scale: float = 1.0, bias: torch.Tensor | float = 0.0) -> Any:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) * scale
        if isinstance(bias, torch.Tensor):
            scores = scores + bias
        return scores.softmax(-1) @ v

    return model


def sdpa(**options: Any) -> Any:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


TIMES, KEYS = 6, 9
SEEN = torch.rand(TIMES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.7
SEEN[:, 0] = True
NONE_SEEN = SEEN.clone()
NONE_SEEN[2] = False
BIAS = torch.randn(4, TIMES, KEYS, generator=torch.Generator().manual_seed(2))
SPELLINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sdpa": (sdpa(), {}),
    "sdpa, scale": (sdpa(scale=0.3), {"scale": 0.3}),
    "sdpa, causal": (sdpa(is_causal=True), {"is_causal": True}),
    "sdpa, mask": (sdpa(attn_mask=SEEN), {}),
    "sdpa, a query that sees nothing": (sdpa(attn_mask=NONE_SEEN), {}),
    "sdpa, bias": (sdpa(attn_mask=BIAS), {}),
    "sdpa, grouped": (sdpa(enable_gqa=True), {"is_grouped": True}),
    "written out": (softmax_attention(), {"scale": 1.0}),
    "written out, scale": (softmax_attention(0.25), {"scale": 0.25}),
    "written out, bias": (softmax_attention(0.5, BIAS), {"scale": 0.5}),
}


FORMS = [(3, False), (4, False), (4, True)]
"""The rank of the arrays, and True if heads are their second axis in memory."""


@pytest.mark.parametrize(("name", "form"), crossed([*SPELLINGS], FORMS), ids=str)
def test_attention_is_recognised(
    name: str, form: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    (function, wanted), (rank, turned) = SPELLINGS[name], form
    if "grouped" in name:
        rank = 4  # without a batch there are no groups
    found: list[Attention] = []

    def noted(analysis: Any) -> list[Attention]:
        made = found_attention(analysis)
        found.extend(made)
        return made

    monkeypatch.setattr(part_weigher, "found_attention", noted)
    monkeypatch.setattr(library.LibraryTimes, "_timed", by_name("attention", Seconds(1.0)))
    monkeypatch.setattr(compiled_graph.CompiledGraph, "gains", True)  # run the plan
    torch.manual_seed(0)
    heads = 2 if "grouped" in name else 4
    shapes = [(3, 4, TIMES, 8), (3, heads, KEYS, 8), (3, heads, KEYS, 8)]
    if turned:
        inputs = [torch.randn(b, t, h, d).transpose(1, 2) for b, h, t, d in shapes]
    else:
        inputs = [torch.randn(shape) for shape in shapes]
    inputs = [x[0] for x in inputs] if rank == 3 else inputs
    compiled = bb.compile(function, *inputs, library="auto")
    assert len(found) == 1
    for field, value in wanted.items():
        assert getattr(found[0], field) == value
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), function(*inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: (q @ k.mT).softmax(-2) @ v,  # another axis
        lambda q, k, v: (q @ k.mT).masked_fill(SEEN, -1e4).softmax(-1) @ v,  # not minus infinity
        lambda q, k, v: ((q @ k.mT + BIAS) * 0.5).softmax(-1) @ v,  # the bias is scaled too
        lambda q, k, v: (lambda p: (p @ v, p))((q @ k.mT).softmax(-1)),  # the weights are shown
        lambda q, k, v: torch.tanh(q @ k.mT).softmax(-1) @ v,
        lambda q, k, v: (q @ k.mT).reshape(3, 4, 3, 18).softmax(-1).reshape(3, 4, 6, 9) @ v,
        lambda q, k, v: (q @ k.mT).view(3, 4, 6, 3, 3).softmax(-1).view(3, 4, 6, 9) @ v,
        lambda q, k, v: torch.add(q @ k.mT, BIAS, alpha=3).softmax(-1) @ v,
        lambda q, k, v: torch.div(q @ k.mT, 0.5, rounding_mode="floor").softmax(-1) @ v,
        lambda q, k, v: (q @ k.mT).to(torch.int32).float().softmax(-1) @ v,
        lambda q, k, v: ((q @ k.mT * -1).masked_fill(~SEEN, -math.inf) * -1).softmax(-1) @ v,
        lambda q, k, v: (q @ k.mT + 3).softmax(-1) @ v,
    ],
)
def test_what_is_no_attention(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noted(analysis: Any) -> list[Attention]:
        made = found_attention(analysis)
        seen.append(len(made))
        return made

    monkeypatch.setattr(part_weigher, "found_attention", noted)
    pretend(monkeypatch, FAST)
    inputs = [torch.randn(3, 4, TIMES, 8), torch.randn(3, 4, KEYS, 8), torch.randn(3, 4, KEYS, 8)]
    compiled = bb.compile(function, *inputs, library="auto")
    assert seen
    assert set(seen) == {0}
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(*inputs), function(*inputs), atol=1e-5, rtol=1e-5, equal_nan=True
        )


def test_zeros_of_another_mask_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros where another mask says so are no part of the attention."""
    pretend(monkeypatch, FAST)
    other = torch.rand(TIMES, KEYS) < 0.1

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        made = (q @ k.mT + BIAS).softmax(-1) @ v
        return torch.where(other.any(-1, keepdim=True), made, 0.0)

    inputs = [torch.randn(3, 4, TIMES, 8), torch.randn(3, 4, KEYS, 8), torch.randn(3, 4, KEYS, 8)]
    compiled = bb.compile(function, *inputs, library="auto")
    torch.testing.assert_close(compiled(*inputs), function(*inputs), atol=1e-5, rtol=1e-5)


def test_attention_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.LibraryTimes, "_timed", by_name("attention", Seconds(1.0)))
    monkeypatch.setattr(compiled_graph.CompiledGraph, "gains", True)  # run the plan

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = (q @ k.mT).softmax(-1) @ v
        return (y @ k.mT).softmax(-1) @ v

    inputs = [torch.randn(3, 4, TIMES, 8), torch.randn(3, 4, KEYS, 8), torch.randn(3, 4, KEYS, 8)]
    compiled = bb.compile(function, *inputs, library="auto")
    torch.testing.assert_close(compiled(*inputs), function(*inputs), atol=1e-5, rtol=1e-5)
    assert sum("bmm" in str(c.operators) for c in compiled.explanation.library) == 2


@pytest.mark.parametrize(("batch", "heads", "times"), [(2, 2, 2), (1, 4, 4), (1, 2, 4)])
def test_repeated_heads_in_another_shape(
    batch: int, heads: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that are repeated and then counted as batches are no grouped attention."""
    pretend(monkeypatch, FAST)
    monkeypatch.setattr(compiled_graph.CompiledGraph, "gains", True)  # run the plan

    def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        wide = k.unsqueeze(2).expand(batch, heads, times, KEYS, 8)
        wide = wide.reshape(batch * heads, times, KEYS, 8)
        return (q @ wide.mT).softmax(-1) @ wide

    inputs = [torch.randn(batch * heads, times, TIMES, 8), torch.randn(batch, heads, KEYS, 8)]
    compiled = bb.compile(function, *inputs, library="auto")
    torch.testing.assert_close(compiled(*inputs), function(*inputs), atol=1e-5, rtol=1e-5)


def test_all_by_the_library_is_the_captured_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kernel the plan is left out: the graph runs as it was captured."""
    pretend(monkeypatch, FAST)
    calls: list[object] = []
    plan = compiled_graph.ModelPlan
    monkeypatch.setattr(plan, "__call__", lambda self, *given: calls.append(self))
    compiled = bb.compile(lambda x: F.gelu(x) * 2, torch.randn(9, 11), library="auto")
    x = torch.randn(9, 11)
    torch.testing.assert_close(compiled(x), F.gelu(x) * 2)
    assert not calls


def test_sizes_that_change(pace: Seconds) -> None:
    def model(q: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.scaled_dot_product_attention(q, q, q, is_causal=True) @ w)

    w = torch.randn(8, 8)
    compiled = bb.compile(model, torch.randn(2, 3, 7, 8), w, dynamic=True, library="auto")
    assert bool(compiled.explanation.library) == (pace is FAST)
    for length in (5, 9, 17):
        q = torch.randn(2, 3, length, 8)
        torch.testing.assert_close(compiled(q, w), model(q, w), atol=1e-5, rtol=1e-5)


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(WrongKind, match='library as "auto" or "never"'):
        options_from(None, {"library": "always"})


def test_what_cannot_be_measured_runs_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Seconds:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(library.LibraryTimes, "_timed", failing)
    x = torch.randn(20, 30)
    found = bb.explain(lambda x: x.softmax(-1) + 1, x, options={"library": "auto"})
    assert found.kernels
    assert not found.library
    with pytest.raises(Exception, match="out of memory"):
        bb.explain(lambda x: x.softmax(-1) - 1, x, options={"library": "auto", "strict": True})


def test_small_attention_stays_as_it_was_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's attention saves less than a call of a plan costs."""
    monkeypatch.setattr(library.LibraryTimes, "_timed", by_name("attention", Seconds(1e-9)))
    calls: list[object] = []
    plan = compiled_graph.ModelPlan
    monkeypatch.setattr(plan, "__call__", lambda self, *given: calls.append(self))

    def function(q: torch.Tensor) -> torch.Tensor:
        return (q @ q.mT).softmax(-1) @ q

    q = torch.randn(2, 3, 4, 8)
    torch.testing.assert_close(bb.compile(function, q, library="auto")(q), function(q))
    assert not calls


def test_a_machine_that_cannot_be_measured_does_not_stop_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No C compiler and no figures from before: the model runs eagerly."""
    monkeypatch.setenv("BLOCKBUSTER_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    machines._cpu.cache_clear()
    x = torch.randn(11, 17)
    made = bb.compile(lambda x: (x * 3 - 1).softmax(-1), x, library="auto")
    torch.testing.assert_close(made(x), (x * 3 - 1).softmax(-1))
    assert "no parts are selected: NoCompiler" in caplog.text
    machines._cpu.cache_clear()


def test_products_that_c_calls_cost_the_host_a_launch() -> None:
    """On a GPU, PyTorch's products are called between kernels; others go through Python."""
    spent, gpu = Seconds(10e-6, 40e-6), torch.device("cuda")
    aten = torch.ops.aten
    for function in (aten.mm.default, aten.linear.default):
        assert library.in_a_plan(function, spent, gpu) == Seconds(
            10e-6, machines.machine_for("cuda").launch
        )
        assert library.in_a_plan(function, spent, torch.device("cpu")) == spent
    assert library.in_a_plan(aten.add.Tensor, spent, gpu) == spent
