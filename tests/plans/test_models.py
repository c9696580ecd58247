"""Plans of PyTorch models: each operator once, the bytes of `explain`, and the reasons."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import blockbuster_fusion as bb
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.plans.text import why_text
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.torch import part_choices
from blockbuster_fusion.torch.planned import steps as planned_steps
from helpers.compilations import forget_parts
from helpers.machines import FOUR_CORES

OPTIONS = {"time_model": False}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(F.layer_norm(x, (8,)))))


class Model(nn.Module):
    """Equal layers, a concatenation, and operators that no kernel computes."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        made = torch.cat([self.last(x), x.exp()], dim=1)
        values, places = torch.topk(made, 2)
        return values * 2, places


X = torch.arange(24.0).reshape(6, 4) / 10


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module", autouse=True)
def _four_cores() -> Iterator[None]:
    """Kernels are chosen for the same machine wherever tests run."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (planned_steps, part_choices):
            patch.setattr(module, "machine_for", lambda target, threads: FOUR_CORES)
        forget_parts(patch, 64)
        yield


@pytest.fixture(scope="module")
def plan(model: Model) -> Plan:
    return bb.plan(model, X, options=OPTIONS)


def computing(plan: Plan) -> set[str]:
    """The operators of a plan's graphs that compute something."""
    views = {"view", "permute", "slice", "reshape", "t", "unsqueeze", "expand", "transpose"}
    found = [x for graph in plan.graphs for x in graph.graph.operators.items() if "." in x[1]]
    return {name for name, op in found if op.split(".")[1] not in views}


def test_each_operator_is_in_one_step(plan: Plan) -> None:
    counts = Counter(name for step in plan.steps for name in step.operators)
    assert set(counts.values()) == {1}
    assert {*counts} == computing(plan)


def test_steps_are_in_order(plan: Plan) -> None:
    """Each array that a step reads is an input, or was written by a step before it."""
    written = {name for step in plan.steps for name in step.writes}
    known = {name for graph in plan.graphs for name in graph.graph.names} - written
    for step in plan.steps:
        assert {*step.reads} <= known
        known |= {*step.writes}


def test_bytes_are_those_of_explain(plan: Plan, model: Model) -> None:
    explained = bb.explain(model, X, options=OPTIONS)
    launches = [k for step in plan.steps if step.kernels for k in step.kernels.launches]
    assert [(k.name, k.bytes_read, k.bytes_written) for k in launches] == [
        (k.name, k.bytes_read, k.bytes_written) for k in explained.kernels
    ]
    assert [*dict.fromkeys(s.region for s in plan.steps if s.kernels)] == [
        *dict.fromkeys(region.name for region in explained.regions)
    ]


def test_kinds_and_lines(plan: Plan) -> None:
    kinds = {step.kind for step in plan.steps}
    assert kinds == {"kernels", "join", "misc"}
    (topk,) = [step for step in plan.steps if step.kind == "misc"]
    assert (topk.name, topk.reason) == ("topk", "not in the operator table")
    assert topk.writes == {"getitem_9": 6 * 2 * 4, "getitem_10": 6 * 2 * 8}
    assert all(line.startswith("plans/test_models.py:") for s in plan.steps for line in s.lines)
    assert plan.steps[0].reads["arg2_1"] == X.numel() * 4


def test_text(plan: Plan, golden) -> None:
    golden(str(plan))


def test_text_of_reasons(plan: Plan, golden) -> None:
    golden("\n".join(why_text(plan.why_not())))


def test_every_array_between_steps_has_a_reason(plan: Plan) -> None:
    written = {name for step in plan.steps for name in step.writes}
    reasons = {x.array: x for x in plan.why_not()}
    assert written <= {*reasons}
    assert all(x.reason for x in reasons.values())
    (topk,) = [step for step in plan.steps if step.name == "topk"]
    (array,) = topk.reads
    (reason,) = plan.why_not(array)
    assert reason.decided == "misc"
    assert {x.decided for x in plan.why_not()} == {"cost", "misc", "result"}
    apart = [x for x in plan.why_not() if x.decided == "cost"]
    assert all(x.basis in ("predicted", "at least") for x in apart)
    assert all(x.seconds and x.instead and x.seconds.total() > 0 for x in apart)


def test_a_file_is_the_plan(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert "arg2_1" in (tmp_path / "plan.json").read_text(encoding="utf-8")


def test_what_runs_between_two_steps_keeps_them_apart() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        return y + y.sort(0)[0]

    made = bb.plan(function, X, options=OPTIONS)
    own = {(x.read_by, x.decided): x.reason for x in made.why_not("exp")}
    assert own["add", "order"] == "sort runs between the two"
    assert own["sort", "misc"].startswith("sort runs in PyTorch")


def test_a_certificate_comes_with_the_plan(plan: Plan) -> None:
    """Also where kernels alone are to be had."""
    certificate = plan.certificate
    assert certificate is not None
    assert 0 < certificate.bound <= certificate.value
    assert certificate.proven == (not certificate.caps)


def test_names_of_weights_do_not_matter() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projection = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.projection(x).relu()

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).relu()

    one, two = (bb.plan(made.eval(), X, options=OPTIONS) for made in (Other(), Same()))
    assert one.graphs[0].digest == two.graphs[0].digest
    wide = bb.plan(Same().eval(), X[:3], options=OPTIONS)
    assert wide.graphs[0].digest != one.graphs[0].digest


def test_what_several_steps_compute_is_told() -> None:
    """A mask is computed anew by each part that needs it."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        return torch.where(mask, x, 0).softmax(-1) @ x, torch.where(mask, y, 1).cumsum(0).sort()[0]

    made = bb.plan(function, torch.randn(6, 6), torch.randn(6, 6), options=OPTIONS)
    counts = Counter(name for step in made.steps for name in step.operators)
    anew = {name for step in made.steps for name in step.anew}
    assert set(counts.values()) == {1}
    assert {*counts} | anew == computing(made)
    assert anew
    assert not anew & {*counts}


def test_graph_breaks_give_several_graphs() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        torch._dynamo.graph_break()
        return y * 2

    made = bb.plan(function, X, options=OPTIONS)
    assert len(made.graphs) == 2
    assert len(made.graph_breaks) == 1
    assert [len(graph.plans[0].steps) for graph in made.graphs] == [1, 1]
    assert "graph 2: " in str(made)


def test_exported_programs_and_the_interpreter() -> None:
    program = torch.export.export(nn.Linear(4, 3).eval(), (X,))
    made = bb.plan(program, options={"target": "interpret"})
    (step,) = made.steps
    assert (made.target, made.machine, step.seconds) == ("interpret", "none", None)
    assert step.reads == {"p_weight": 48, "p_bias": 12, "input": 96}
    assert Plan.from_data(made.data()) == made


def test_a_model_without_weights() -> None:
    """A model that is exported from tensors without memory is planned, and not run."""

    def exported() -> torch.export.ExportedProgram:
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
        return torch.export.export(model, (torch.empty(6, 4),))

    with FakeTensorMode():
        fake = exported()
    one, two = (bb.plan(program, options=OPTIONS) for program in (fake, exported()))
    assert one.steps == two.steps
    assert one.graphs[0].digest == two.graphs[0].digest


@pytest.mark.parametrize("module", ["planned.make", "observer"])
def test_modules_are_imported_alone(module: str) -> None:
    """Whichever comes first: a command imports one of them, and not the package's face."""
    code = f"import blockbuster_fusion.torch.{module}"
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_tiles_are_those_of_the_kernels() -> None:
    """On a GPU, kernels may have shorter tiles than were asked for."""
    dims = {name: Dim(Axis(name, 64)) for name in "MN"}
    config = Config(tiles={dims["M"].label: 128, dims["N"].label: 64})
    made = planned_steps._fitted(config, {dims["M"]: 32, Dim(Axis("K", 64)): 16})
    assert made.tiles == {dims["M"].label: 32, dims["N"].label: 64}


# ------------------------------------------------------------------------ weighed


@pytest.fixture(scope="module")
def weighed() -> Plan:
    torch.manual_seed(0)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return torch.softmax(x @ weight, -1)

    inputs = torch.randn(256, 256), torch.randn(256, 256)
    return bb.plan(function, *inputs, options={**OPTIONS, "library": "auto"})


def test_rivals_are_told(weighed: Plan) -> None:
    for step in weighed.steps:
        other = step.runner_up
        assert other is not None
        assert other.by == ("library" if step.kind == "kernels" else "kernels")
        assert other.reason or other.obstacle
        assert step.seconds is not None
        assert other.instead is not None
    library = [step for step in weighed.steps if step.kind == "library"]
    assert all(step.measured for step in library)


def test_weighed_plans_cover_all_operators(weighed: Plan) -> None:
    counts = Counter(name for step in weighed.steps for name in step.operators)
    assert {*counts} == computing(weighed)
    assert set(counts.values()) == {1}
    assert Plan.from_data(weighed.data()) == weighed
