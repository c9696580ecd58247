"""Models that run by a loaded plan: nothing is weighed or searched, and misfits are refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional as F

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BadPlan, PlanMisfit, WrongKind
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch import compiled_graph
from blockbuster_fusion.torch.model import compile_model
from blockbuster_fusion.torch.rivals import library, whole_model
from blockbuster_fusion.torch.rivals.choose import Chooser

Function = Callable[..., Any]
FAST, SLOW = Seconds(1e-12), Seconds(1.0)
WEIGHED = {"library": "auto", "time_model": False}


@pytest.fixture(autouse=True)
def _reset() -> None:
    torch._dynamo.reset()


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def block(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x + F.gelu(F.layer_norm(x, (24,)) @ up) @ down


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2) * 2


def joined(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    values, places = torch.cat([x.exp(), y, y.sum(1, keepdim=True)], 1).sort(1)
    return values + 1, places


def cached(cache: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    cache.index_copy_(0, rows, x * 2)
    return cache.softmax(-1) @ x.T


def root_mean_square(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (24,), weight) + 1


def perceptron(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias).relu()


CASES: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "block": (block, (numbers(7, 24), numbers(24, 40), numbers(40, 24))),
    "attention": (attention, (numbers(2, 3, 9, 16),) * 3),
    "joined": (joined, (numbers(5, 7), numbers(5, 3))),
    "cached": (cached, (numbers(9, 6), torch.tensor([2, 5, 7]), numbers(3, 6))),
    "norm": (root_mean_square, (numbers(7, 24), numbers(24))),
    "linear": (
        lambda x, w, b: F.linear(x, w, b).relu(),
        (numbers(2, 7, 8), numbers(5, 8), numbers(5)),
    ),
}


def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighing, searching and measuring fail from now on."""

    def fails(*_: Any, **__: Any) -> Any:
        raise AssertionError("a plan leaves nothing to be chosen")

    monkeypatch.setattr(Chooser, "choose", fails)
    monkeypatch.setattr(Improver, "best", fails)
    monkeypatch.setattr(library.LibraryTimes, "_timed", fails)
    monkeypatch.setattr(whole_model.WholeModel, "faster", fails)


def run_by(plan: Plan, function: Function, inputs: tuple[Tensor, ...], **options: Any) -> Any:
    """The results of a function, and of the same by a plan; and the explanation of that."""
    torch._dynamo.reset()
    own, others = ([x.clone() for x in inputs] for _ in range(2))
    with torch.no_grad():
        compiled = compile_model(function, plan=plan, strict=True, **options)
        found = compiled(*own), own
        wanted = function(*others), others
    torch.testing.assert_close(found, wanted)
    return compiled.explanation


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pace", [FAST, SLOW, None], ids=["library", "kernels", "never"])
def test_equal_results_by_a_plan(
    name: str, pace: Seconds | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By kernels, by PyTorch's operators, and by composites that are recognised."""
    function, inputs = CASES[name]
    options: dict[str, Any] = {"library": "never"}
    if pace is not None:
        options = WEIGHED
        monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: pace)
    plan = bb.plan(function, *(x.clone() for x in inputs), options=options)
    plan.save(tmp_path / "plan.json")
    forbidden(monkeypatch)
    loaded = Plan.load(tmp_path / "plan.json")
    explained = run_by(loaded, function, inputs, library="auto")
    kernels = [k.name for s in plan.steps if s.kernels for k in s.kernels.launches]
    assert [k.name for k in explained.kernels] == kernels
    assert len(explained.library) <= len([s for s in plan.steps if s.kind == "library"])
    assert not explained.fallbacks


@pytest.mark.parametrize("name", CASES)
def test_the_plan_of_a_loaded_plan_is_the_same(name: str) -> None:
    function, inputs = CASES[name]
    options = {"library": "never"}
    plan = bb.plan(function, *(x.clone() for x in inputs), options=options)
    torch._dynamo.reset()
    again = bb.plan(function, *(x.clone() for x in inputs), options={**options, "plan": plan})
    assert again.steps == plan.steps
    assert again.certificate == plan.certificate
    assert [g.digest for g in again.graphs] == [g.digest for g in plan.graphs]


def test_composites_come_from_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.LibraryTimes, "_timed", by_name("attention"))
    monkeypatch.setattr(compiled_graph.CompiledGraph, "gains", True)  # run the plan
    function: Function = F.scaled_dot_product_attention
    inputs = numbers(2, 3, 9, 16), numbers(2, 3, 7, 16), numbers(2, 3, 7, 16)
    plan = bb.plan(function, *inputs, options=WEIGHED)
    (step,) = [s for s in plan.steps if s.recognised]
    assert step.recognised == "aten.scaled_dot_product_attention.default"
    assert len(step.operators) > 2
    assert {*step.operators} <= {*plan.graphs[0].graph.operators}
    forbidden(monkeypatch)
    explained = run_by(plan, function, inputs)
    (choice,) = explained.library
    assert choice.recognised == (step.recognised,)


def by_name(fast: str) -> Callable[..., Seconds]:
    def timed(self: object, name: str, *_: object) -> Seconds:
        return Seconds(1e-9) if fast in name else Seconds(1e-3)

    return timed


def test_as_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured graph runs by the plan as well, if nothing is faster."""
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: FAST)
    function, inputs = CASES["block"]
    plan = bb.plan(function, *inputs, options=WEIGHED)
    assert plan.graphs[0].plans[0].as_captured
    assert {s.kind for s in plan.steps} == {"library"}
    assert "it runs as it was captured" in str(plan)
    explained = run_by(plan, function, inputs)
    assert explained.graphs[0].is_as_captured


# ------------------------------------------------------------------------ sizes


def ranged_plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan with kernels for many rows, and PyTorch's operators for few."""

    def timed(self: library.LibraryTimes, name: str, seen: Any, *_: Any) -> Seconds:
        rows, _ = seen[0][0][0]
        return FAST if rows < 512 else SLOW

    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)
    return bb.plan(exponential, changing(2048), options=WEIGHED)


def exponential(x: Tensor) -> Tensor:
    return x.exp() + 1


def changing(rows: int) -> Tensor:
    x = numbers(rows, 24)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def test_a_table_of_plans_by_ranges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = ranged_plan(monkeypatch)
    (graph,) = plan.graphs
    assert [{s.kind for s in own.steps} for own in graph.plans] == [{"kernels"}, {"library"}]
    many, few = (own.sizes for own in graph.plans)
    assert re.fullmatch(r"s\d+ from \d+", many)
    assert re.fullmatch(r"s\d+ up to \d+", few)
    assert many in str(plan)
    assert few in str(plan)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    forbidden(monkeypatch)
    torch._dynamo.reset()
    compiled = bb.compile(exponential, changing(2048), plan=loaded)
    for rows in (2048, 3, 700):
        torch.testing.assert_close(compiled(changing(rows)), exponential(changing(rows)))
    (found,) = compiled.graphs
    assert [bool(x.fused) for x in found.ranged] == [True, False]


def test_kernels_by_ranges_come_from_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).relu()

    inputs = changing(2048), numbers(24, 16)
    plan = bb.plan(function, *inputs, options={"library": "never"})
    forbidden(monkeypatch)
    torch._dynamo.reset()
    compiled = bb.compile(function, *inputs, plan=plan)
    again = compiled.explanation.ranges
    assert len(again) == sum(len(s.kernels.others) + 1 for s in plan.steps if s.kernels.others)
    for rows in (2048, 2, 64):
        given = changing(rows)
        torch.testing.assert_close(compiled(given, inputs[1]), function(given, inputs[1]))


# ------------------------------------------------------------------------ front ends


class Small(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).softmax(-1)


def test_torch_compile_takes_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, x = Small().eval(), numbers(4, 8)
    bb.plan(model, x).save(tmp_path / "plan.json")
    forbidden(monkeypatch)
    torch._dynamo.reset()
    for given in (str(tmp_path / "plan.json"), tmp_path / "plan.json"):
        compiled = torch.compile(model, backend="blockbuster", options={"plan": given})
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))


def test_exported_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Small().eval(), numbers(4, 8)
    program = torch.export.export(model, (x,))
    plan = bb.plan(program)
    forbidden(monkeypatch)
    made = bb.from_torch(program, plan=plan)
    torch.testing.assert_close(made(x), model(x))


def test_graphs_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp() + 1
        torch._dynamo.graph_break()
        return y.softmax(-1)

    x = numbers(4, 8)
    plan = bb.plan(function, x)
    forbidden(monkeypatch)
    explained = run_by(plan, function, (x,))
    assert len(explained.graphs) == len(plan.graphs) == 2


def test_programs_run_by_a_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program, sizes = bb.examples.find("matmul-relu"), {"M": 9, "K": 7, "N": 5}
    plan = bb.plan(program, sizes=sizes)
    plan.save(tmp_path / "plan.json")
    forbidden(monkeypatch)
    made = bb.compile(program, sizes=sizes, plan=tmp_path / "plan.json")
    assert made.config == plan.steps[0].kernels.config
    a, b = np.random.default_rng(0).normal(size=(2, 9, 7)).astype(np.float32)
    found = made(a, b[:5])["C"]
    np.testing.assert_allclose(found, np.maximum(a @ b[:5].T, 0), rtol=1e-5, atol=1e-5)
    with pytest.raises(PlanMisfit, match="M=8"):
        bb.compile(program, sizes={**sizes, "M": 8}, plan=plan)
    with pytest.raises(WrongKind, match="a plan alone, not tiles too"):
        bb.compile(program, sizes=sizes, plan=plan, tiles={"M": 4})


# ------------------------------------------------------------------------ refusals


def refused(model: Function, x: Tensor, plan: Plan, **options: Any) -> str:
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(BackendCompilerFailed) as raised:
        bb.compile(model, x, plan=plan, **options)
    assert isinstance(raised.value.inner_exception, PlanMisfit)
    return str(raised.value.inner_exception)


def test_misfits_are_refused() -> None:
    model, x = Small().eval(), numbers(4, 8)
    plan = bb.plan(model, x)
    told = refused(Small(7).eval(), x, plan)
    assert "the plan does not fit: the model has %" in told
    assert "weight: float32[7, 8], and the plan is for %" in told
    assert "weight: float32[6, 8]; make one with bb.plan" in told
    assert "float32[5, 8], and the plan is for" in refused(model, numbers(5, 8), plan)
    assert "float64[6, 8]" in refused(Small().eval().double(), x.double(), plan)

    def more(x: Tensor) -> Tensor:
        return model(x).exp()

    assert "aten.exp.default" in refused(more, x, plan)
    told = refused(model, x, plan, target="interpret")
    assert "it is for the target 'cpu', and the model is compiled for 'interpret'" in told


def test_a_part_that_is_fused_otherwise_is_refused() -> None:
    """Another version of the package may make other snapshots of a part."""
    model, x = Small().eval(), numbers(4, 8)
    data = bb.plan(model, x).data()
    data["graphs"][0]["plans"][0]["steps"][0]["kernels"]["digest"] = "0" * 64
    told = refused(model, x, Plan.from_data(data))
    assert "is fused otherwise by this version of the package" in told


def test_a_step_that_is_missing_is_refused() -> None:
    function, inputs = CASES["joined"]
    data = bb.plan(function, *inputs).data()
    steps = data["graphs"][0]["plans"][0]["steps"]
    gone = steps.pop()
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(BackendCompilerFailed, match="no step of it has add"):
        bb.compile(function, *inputs, plan=Plan.from_data(data))
    steps.append(gone)
    gone["kernels"]["config"] = {"snapshot": 99}
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(BackendCompilerFailed, match="has no such kernels"):
        bb.compile(function, *inputs, plan=Plan.from_data(data))


def test_constants_come_from_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of weights alone are computed once, if the options ask for that."""
    model, x = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6)).eval(), numbers(4, 8)
    plan = bb.plan(model, x, options={"freeze": True})
    forbidden(monkeypatch)
    explained = run_by(plan, model, (x,), freeze=True)
    assert explained.frozen
    assert "the plan does not fit" in refused(model, x, plan)


def test_wrong_options() -> None:
    model, x = Small().eval(), numbers(4, 8)
    with pytest.raises(WrongKind, match="a plan, or its file, not 3"):
        bb.compile(model, x, plan=3)
    with pytest.raises(WrongKind, match="a plan, or constraints on parts"):
        bb.compile(model, x, plan=bb.plan(model, x), apart=[("addmm", "amax")])
    with pytest.raises(FileNotFoundError):
        bb.compile(model, x, plan="nowhere.json")
    with pytest.raises(BadPlan, match="it is no plan"):
        Plan.from_data({})
