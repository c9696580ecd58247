"""Plans of array programs: their kernels, their files, and the files that are refused."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request
from blockbuster_fusion.errors import BadExtent, BadPlan, NotStored, PlanMisfit
from blockbuster_fusion.plans.operator_graph import OperatorGraph
from blockbuster_fusion.plans.plan import GraphPlan, Plan
from blockbuster_fusion.plans.programs import plan_program, planned_config
from blockbuster_fusion.plans.text import why_text
from blockbuster_fusion.select.certificate import Certificate
from helpers.machines import FOUR_CORES

SIZES = {"M": 96, "K": 80, "N": 72}


def request(**sizes: int) -> Request:
    return Request(bb.examples.find("matmul-relu"), sizes={**SIZES, **sizes})


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_program(request(), FOUR_CORES)


def test_one_kernel_has_all_operators(plan: Plan) -> None:
    (step,) = plan.steps
    assert [*step.operators.values()] == ["matmul", "elementwise"]
    assert step.reads == {"A": 4 * 96 * 80, "BT": 4 * 72 * 80}
    assert step.writes == {"C": 4 * 96 * 72}
    assert step.flops >= 2 * 96 * 80 * 72
    assert step.basis == "predicted"
    assert step.seconds is not None
    assert plan.seconds == step.seconds.total() > 0
    assert plan.certificate is None


def test_text(plan: Plan, golden) -> None:
    golden(str(plan))


def test_text_of_reasons(golden) -> None:
    sizes = {"M": 64, "D": 32, "E": 48}
    made = plan_program(Request(bb.examples.find("self-attention"), sizes=sizes), FOUR_CORES)
    assert len(made.steps) > 1  # what is stored has a reason
    assert {x.decided for x in made.why_not()} == {"guard"}
    golden("\n".join([str(made), *why_text(made.why_not())]))


def test_bytes_are_those_of_all_kernels() -> None:
    """An array between two kernels is written by one and read by the other."""
    sizes = {"M": 64, "D": 32, "E": 48}
    made = plan_program(Request(bb.examples.find("self-attention"), sizes=sizes), FOUR_CORES)
    written = {name: size for step in made.steps for name, size in step.writes.items()}
    read = {name: size for step in made.steps for name, size in step.reads.items()}
    between = {*written} & {*read}
    assert between
    assert all(written[name] == read[name] for name in between)
    assert {*read} - between == {x.name for x in bb.examples.find("self-attention").inputs}


def test_a_size_is_missing() -> None:
    with pytest.raises(BadExtent, match="extent KK: a plan is for given sizes"):
        bb.plan(bb.examples.find("matmul-relu"), sizes={"M": 4, "N": 4})


def test_functions_are_traced() -> None:
    made = bb.plan(lambda A, B: bb.ops.relu(A @ B.T), A="M K", B="N K", sizes=SIZES)
    assert [*made.steps[0].operators.values()] == ["matmul", "elementwise"]


def test_only_numpy_is_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import blockbuster_fusion as bb\n"
        "print(bb.plan(bb.examples.find('softmax'), sizes={'M': 8, 'N': 8}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "1 graph, " in done.stdout


# ------------------------------------------------------------------------ files


def test_a_file_is_the_plan(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert Plan.from_data(plan.data()) == plan
    text = (tmp_path / "plan.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    assert max(map(len, text.splitlines())) <= 140
    plan.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text(encoding="utf-8") == text


def test_other_sizes_change_few_lines(plan: Plan) -> None:
    """The lines of operators and the numbers change, not the shape of the file."""
    data, other = plan.data(), plan_program(request(K=40), FOUR_CORES).data()
    assert data.keys() == other.keys()
    assert [*data["graphs"][0]["plans"][0]["steps"][0]] == [
        *other["graphs"][0]["plans"][0]["steps"][0]
    ]


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.update(kind="recipe"), "p.json: it is no plan"),
        (lambda d: d.update(format=2), "p.json: it has format 2, and this version reads 1"),
        (lambda d: d.update(target=3), "p.json.target: a text is wanted, and 3 is given"),
        (lambda d: d.update(rows=3), "p.json.rows: there is no such field"),
        (lambda d: d.pop("machine"), "p.json.machine: it is missing"),
        (lambda d: d.update(graphs={}), "p.json.graphs: a list is wanted, and an object is given"),
        (
            lambda d: d["graphs"][0]["operators"].pop(0),
            r"operators\[1\]: %A is not defined before",
        ),
        (
            lambda d: d["graphs"][0]["operators"].__setitem__(0, "%A = input: float32[M=3 K=80]"),
            "the operators were changed: their digest is another one",
        ),
        (lambda d: d["graphs"][0]["operators"].append("A"), "'A' is no operator"),
        (lambda d: d["graphs"][0]["plans"].clear(), r"graphs\[0\].plans: there is none"),
        (
            lambda d: d["graphs"][0]["plans"].append(d["graphs"][0]["plans"][0]),
            "there must be one for each range of sizes",
        ),
        (lambda d: step_of(d).update(kind="magic"), "one of kernels, library, misc, join"),
        (lambda d: step_of(d).update(flops=1.5), "flops: a whole number is wanted"),
        (lambda d: step_of(d).update(flops=True), "flops: a whole number is wanted"),
        (lambda d: step_of(d)["operators"].update(v9="mm"), "the graph has no operator v9"),
        (lambda d: step_of(d).pop("kernels"), "kernels: its kind says otherwise"),
        (
            lambda d: d["graphs"][0]["plans"][0]["steps"].append(step_of(d)),
            r"steps\[1\].operators: v1 is in a step before",
        ),
        (
            lambda d: step_of(d)["kernels"].update(divisions=[divided([4, 2])]),
            "lengths must ascend, each with a number",
        ),
        (
            lambda d: step_of(d)["kernels"].update(divisions=[divided([2, 4])]),
            "a range has no configuration",
        ),
        (lambda d: d["graphs"][0].update(division=divided([2, 4])), "no shape has its symbol"),
        (lambda d: step_of(d)["predicted"].update(device=float("nan")), "a number is wanted"),
        (lambda d: step_of(d)["kernels"]["config"].update(grid="no"), "configuration, grid: 'no'"),
        (lambda d: step_of(d)["reads"].update(A="much"), "reads.A: a whole number is wanted"),
    ],
)
def test_a_damaged_file_is_refused(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, sentence: str
) -> None:
    data = json.loads(json.dumps(plan.data()))
    change(data)
    monkeypatch.chdir(tmp_path)
    Path("p.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(BadPlan, match=sentence):
        Plan.load("p.json")


def divided(lengths: list[int]) -> dict[str, Any]:
    return {"symbol": "s0", "lengths": lengths, "numbers": [0, 1], "home": 0}


def step_of(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["graphs"][0]["plans"][0]["steps"][0]
    return found


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(BadPlan, match="it is no JSON"):
        Plan.load(tmp_path / "p.json")


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in some data, with each of its keys."""
    keys = [*data] if isinstance(data, dict) else range(len(data) if isinstance(data, list) else 0)
    for key in keys:
        yield data, key
        yield from places(data[key])


@given(number=st.integers(0, 10_000), value=st.sampled_from([None, "", 7, -1, True, [], {}, [[]]]))
def test_no_change_of_a_file_is_another_error(number: int, value: object) -> None:
    """A file in which one value was replaced is a plan, or is refused."""
    data = json.loads(json.dumps(plan_program(request(), FOUR_CORES).data()))
    found = [*places(data)]
    container, key = found[number % len(found)]
    container[key] = value
    try:
        made = Plan.from_data(data)
    except BadPlan:
        return
    assert Plan.from_data(json.loads(json.dumps(made.data()))) == made
    assert str(made)


def test_certificates_of_several_graphs_are_one(plan: Plan) -> None:
    (graph,) = plan.graphs
    one = Certificate(value=2.0, bound=1.0, ideals=3, candidates=4, priced=2, rounds=1)
    proven = replace(one, bound=2.0)
    assert with_certificates(plan, graph, one).certificate == one
    both = with_certificates(plan, graph, one, proven).certificate
    assert both is not None
    assert (both.value, both.bound, both.ideals, both.proven) == (4.0, 3.0, 6, False)
    proof = with_certificates(plan, graph, proven, proven)
    assert proof.certificate is not None
    assert proof.certificate.proven
    assert "proven to be the least, among 8 candidates" in str(proof)
    told = "not proven to be the least: at most 100 %, 1000 ms, above the least cost, where"
    assert told in str(with_certificates(plan, graph, one))
    near = replace(one, bound=1.98, caps=("a limit",))
    told = "at most 1.0 %, 20 ms, above the least cost, where predictions count times their errors"
    assert told in str(with_certificates(plan, graph, near))
    unknown = replace(one, bound=0.0)
    assert "nothing is known of the least cost" in str(with_certificates(plan, graph, unknown))
    assert with_certificates(plan, graph, one, None).certificate is None
    assert Plan.from_data(proof.data()) == proof


def with_certificates(plan: Plan, graph: GraphPlan, *found: Certificate | None) -> Plan:
    (own,) = graph.plans
    graphs = (replace(graph, plans=(replace(own, certificate=x),)) for x in found)
    return replace(plan, graphs=tuple(graphs))


# ------------------------------------------------------------------------ what it fits


def test_a_plan_fits_its_program(plan: Plan) -> None:
    assert planned_config(plan, request()) == plan.steps[0].kernels.config


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (request(K=81), "the model has %A = input: float32.M=96 K=81., and the plan is for"),
        (Request(bb.examples.find("softmax"), sizes={"M": 96, "N": 72}), "the model has %"),
        (Request(bb.examples.find("matmul-relu"), sizes=SIZES, target="cuda"), "the target 'cpu'"),
        (Request(bb.examples.find("matmul-relu"), sizes=SIZES, dtype="bfloat16"), "bfloat16"),
    ],
)
def test_another_program_is_refused(plan: Plan, other: Request, sentence: str) -> None:
    with pytest.raises(PlanMisfit, match=sentence):
        planned_config(plan, other)


def test_names_do_not_matter() -> None:
    one = OperatorGraph(("%x = input: float32[s0, 4]", "%y = relu(%x): float32[s0, 4]"))
    two = OperatorGraph(("%a = input: float32[s7, 4]", "%b = relu(%a): float32[s7, 4]"))
    other = OperatorGraph(("%a = input: float32[s7, 4]", "%b = relu(%a): float32[s7, 5]"))
    assert one.digest == two.digest != other.digest
    assert one.difference(two) == ""
    assert one.difference(other).endswith("and the plan is for %y = relu(%x): float32[s0, 4]")
    assert "goes on with" in OperatorGraph(one.lines[:1]).difference(two)
    assert "ends before %y" in one.difference(OperatorGraph(two.lines[:1]))
    two.check("a place")


def test_an_array_that_is_not_stored(plan: Plan) -> None:
    with pytest.raises(NotStored, match="stores no array 'X' between its steps; it stores none"):
        plan.why_not("X")
