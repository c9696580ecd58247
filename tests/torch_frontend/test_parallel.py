"""Tensor parallelism: collectives among kernels, on ranks that are processes of this machine."""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from blockbuster_fusion.machine.link import LOOPBACK, Link
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.collectives import is_collective, is_wait
from blockbuster_fusion.torch.capture.describe import described
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.compile_graph import compile_graph
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.explain import Explanation
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.plan.cuda_graph import obstacle
from blockbuster_fusion.torch.plan.named_calls import makes_arrays
from blockbuster_fusion.torch.plan.steps import KernelStep, OperatorStep
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.rivals.whole_model import Untimed, written_inputs
from helpers.ranks import run_ranks

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="ranks are processes of Linux"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch has no ranks"),
]
functional = torch.ops._c10d_functional
SCRIPT = Path(__file__).parents[1] / "helpers" / "parallel_cases.py"

LAYERS = (
    *("layer", "kernels_alone", "unequal_choices", "tuned", "uneven_width", "sharded_rows"),
    "three_heads",
)
SEVERAL = ("in_flight", "layouts", "any_rows", "cached")
EXPLAINED = ("explained", "explained_in_pieces")
ALONE = ("layer", "three_heads", "explained", "made_inside")


@functools.cache
def outputs(ranks: int) -> list[dict[str, Any]]:
    """The findings of each rank, by case."""
    cases = (*LAYERS, *SEVERAL, *EXPLAINED) if ranks > 1 else ALONE
    with tempfile.TemporaryDirectory() as folder:
        return run_ranks(SCRIPT, cases, ranks, Path(folder))


# ---------------------------------------------------------------- on two ranks


@pytest.mark.parametrize("case", LAYERS)
def test_a_sharded_model_is_right_on_every_rank(case: str) -> None:
    """Against float64 on one rank: at most twice the error of the whole model in float32."""
    for found in outputs(2):
        assert max(found[case]["errors"]) <= 2 * found[case]["own"]


@pytest.mark.parametrize("case", LAYERS)
def test_compiling_runs_no_collective(case: str) -> None:
    """The first call, which compiles, runs as many as a later one; all ranks run the same."""
    first, later = outputs(2)[0][case]["first"], outputs(2)[0][case]["later"]
    assert first
    assert later == 3 * first
    for found in outputs(2):
        assert (found[case]["first"], found[case]["later"]) == (first, later)
        assert found[case]["waits"] == [len(first), len(later)]


def test_rows_may_be_sharded_between_products() -> None:
    found = outputs(2)[0]["sharded_rows"]["first"]
    assert found == 2 * ["all_gather_into_tensor", "reduce_scatter_tensor"]


def test_heads_may_be_sharded_unevenly() -> None:
    assert [found["three_heads"]["heads"] for found in outputs(2)] == [2, 1]


@pytest.mark.parametrize("case", SEVERAL)
def test_several_results_are_right_on_every_rank(case: str) -> None:
    """Kernels run while arrays are in flight; operands of odd layouts; sizes that change."""
    for found in outputs(2):
        for errors in found[case]["several"]:
            limits = [2 * own for own in found[case]["own"]]
            assert all(error <= limit for error, limit in zip(errors, limits, strict=True))


def test_one_graph_serves_all_lengths() -> None:
    for found in outputs(2):
        assert found["any_rows"]["graphs"] == 1
        assert len(found["any_rows"]["told"]) == 2


def test_nothing_overwrites_an_array_in_flight() -> None:
    for found in outputs(2):
        assert found["in_flight"]["arena"] > 0  # kernels share memory, in which dead arrays lie
        assert found["in_flight"]["flown"] == 3
        assert found["in_flight"]["changed"] == []


def test_one_rank_explains_while_the_other_waits() -> None:
    for rank, found in enumerate(outputs(2)):
        told = found["explained"]
        assert told["ran"] == []
        assert all(seconds for seconds in told["timed"]) == bool(rank)  # the second one measures
        collectives = told["data"]["collectives"]
        assert [x["operator"] for x in collectives] == ["all_reduce", "all_reduce"]
        size = 2 * 37 * 64 * 4
        for x in collectives:
            assert (x["bytes"], x["ranks"]) == (size, 2)
            assert x["seconds"] == LOOPBACK.seconds("all_reduce", size, 2)
            assert x["waits"]
        assert "collectives, for which the model is not timed as a whole:" in told["text"]
        assert "all_reduce (all_reduce): 18.9 kB, 2 ranks; 337.9 µs predicted" in told["text"]


def test_operators_around_collectives_are_fused() -> None:
    """The residual with the norm behind it, and with the projections that read that."""
    kernels = outputs(2)[0]["explained"]["data"]["kernels"]
    found = [[name.split(".")[1] for name in kernel["operators"]] for kernel in kernels]
    assert any({"add", "mean", "rsqrt", "mm", "silu"} <= {*names} for names in found)
    assert any({"mean", "rsqrt", "mm", "cat"} & {*names} and "neg" in names for names in found)


def test_what_is_not_compiled_is_explained_without_collectives_too() -> None:
    found = outputs(2)[0]["explained_in_pieces"]
    assert found["graphs"] == 2
    assert found["collectives"] == 1
    assert (
        "calls c10d.allreduce_.default outside of what torch.compile captures" in found["problem"]
    )


# ---------------------------------------------------------------- on one rank


@pytest.mark.parametrize("case", ["layer", "three_heads"])
def test_a_mesh_of_one_rank(case: str) -> None:
    (found,) = outputs(1)
    assert max(found[case]["errors"]) <= 2 * found[case]["own"]
    assert found["explained"]["data"]["coverage"] > 0.5


def test_distributed_tensors_of_one_side_of_a_call() -> None:
    (found,) = outputs(1)
    assert all(found["made_inside"]["kinds"])
    assert max(found["made_inside"]["errors"]) <= 2 * found["made_inside"]["own"]


def test_ranks_that_hang_are_ended(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(
        "import sys, time\nprint('{}', flush=True)\ntime.sleep(int(sys.argv[1]) * 60)"
    )
    with pytest.raises(AssertionError, match=r"ended with \[0, None\]"):
        run_ranks(script, (), 2, tmp_path, seconds=2.0)
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(script) not in left


# ---------------------------------------------------------------- graphs, without ranks


def two_sums(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Collectives that do not depend on one another, of a group that is not there."""
    a = functional.all_reduce((x * 2).exp(), "sum", "nobody")
    b = functional.all_gather_into_tensor((y + 1).sin(), 4, "nobody")
    return functional.wait_tensor(b) * 2, functional.wait_tensor(a) * 3


def captured() -> torch.fx.GraphModule:
    made = make_fx(two_sums, tracing_mode="fake")(torch.ones(6, 8), torch.ones(3, 5))
    made.graph.output_node().args = ([*made.graph.output_node().args[0]],)
    return made


def backwards(parts: PartCompiler) -> list[list[torch.fx.Node]]:
    """Each operator by itself, the last one first, wherever operands allow it."""
    needed, left = parts.analysis.needs, [*parts.analysis.operators]
    order = list[list[torch.fx.Node]]()
    while left:
        last = [n for n in left if not {*needed[n]} & {*left}][-1]
        order.append([last])
        left.remove(last)
    return order


def test_ranks_call_collectives_in_the_captured_order_whatever_is_selected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PartCompiler, "parts", backwards)
    made = compile_graph(captured(), options=Options(library="never"))
    told = Explanation((made,)).collectives
    assert [x.operator for x in told] == ["all_reduce", "all_gather_into_tensor"]
    names = [step.name for step in made.plan.steps if "c10d" in step.name]
    short = [name.split(".")[1] for name in names]
    waits = ["wait_tensor", "wait_tensor"]
    assert short == ["all_reduce", "all_gather_into_tensor", *waits]
    assert [x.ranks for x in told] == [None, 4]
    assert told[0].seconds is None
    assert told[1].seconds == LOOPBACK.seconds("all_gather_into_tensor", 4 * 15 * 4, 4)
    assert "an unknown group; time unknown" in str(told[0])


def test_collectives_are_of_no_part_and_have_a_predicted_time() -> None:
    analysis = Analysis(captured(), frozenset())
    nodes = [n for n in analysis.nodes if is_collective(n.target)]
    assert len(nodes) == 4
    assert {analysis.kind(n) for n in nodes} == {Kind.MISC}
    times, spent = LibraryTimes(analysis), {}
    for node in nodes:  # measuring one would fail: the group is not there
        spent[node.name] = times.operator(node).total()
    gathered = LOOPBACK.seconds("all_gather_into_tensor", 240, 4)
    assert sorted(spent.values()) == [0.0, 0.0, 0.0, gathered]
    assert all(is_wait(n.target) or spent[n.name] == 0 for n in nodes)


def test_the_first_of_several_waits_has_the_time() -> None:
    def model(x: Tensor, y: Tensor) -> list[Tensor]:
        gather = functional.all_gather_into_tensor_coalesced
        return [functional.wait_tensor(z) for z in gather([x, y], 2, "nobody")]

    made = make_fx(model, tracing_mode="fake")(torch.ones(6, 8), torch.ones(3, 5))
    analysis = Analysis(made, frozenset())
    waits = [n for n in analysis.nodes if is_wait(n.target)]
    spent = [LibraryTimes(analysis).operator(n).total() for n in waits]
    assert spent == [LOOPBACK.seconds("all_gather", 2 * (48 + 15) * 4, 2), 0.0]


def test_a_model_with_collectives_is_neither_timed_nor_replayed_nor_called_from_c() -> None:
    made = compile_graph(captured(), options=Options(library="never"))
    with pytest.raises(Untimed, match="would wait for other ranks"):
        written_inputs([made], [torch.ones(6, 8), torch.ones(3, 5)])
    assert made.communicates
    assert "waits for other ranks" in str(obstacle(made.plan, "cpu"))
    assert not makes_arrays(functional.all_gather_into_tensor.default)
    described_kinds = [op.kind for op in described(made.analysis, captured_length(made.analysis))]
    assert described_kinds.count(Kind.MISC) == 4


def test_an_operand_that_lies_in_a_larger_array_is_copied() -> None:
    """Some collectives take contiguous arrays alone, and a kernel stores a piece where it is."""

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        a = x.exp()
        every = functional.all_gather_into_tensor(a, 2, "nobody")
        return functional.wait_tensor(every), torch.cat((a, a * 2, x[:, :3]), 1)

    made = make_fx(model, tracing_mode="fake")(torch.ones(4, 5))
    made.graph.output_node().args = ([*made.graph.output_node().args[0]],)
    steps = compile_graph(made, options=Options(library="never")).plan.steps
    (gather,) = (x for x in steps if "all_gather" in getattr(x, "name", ""))
    assert isinstance(gather, OperatorStep)
    (copy,) = (x for x in steps if getattr(x, "output", None) == gather.arguments[0].number)
    assert isinstance(copy, OperatorStep)
    assert copy.function is torch.Tensor.contiguous
    kernels = [outputs_of(x) for x in steps if isinstance(x, KernelStep)]
    assert any(found.get(copy.arguments[0].number) for found in kernels)


def test_a_gathered_weight_is_no_constant() -> None:
    """All ranks would have to compute it at the same time."""

    def model(x: Tensor, w: Tensor) -> list[Tensor]:
        every = functional.all_gather_into_tensor(w * 2, 2, "nobody")
        return [x @ functional.wait_tensor(every)]

    made = make_fx(model, tracing_mode="fake")(torch.ones(4, 6), torch.ones(3, 5))
    options = Options(library="never", freeze=True)
    graph = compile_graph(made, static=[1], options=options)
    assert [x.operator for x in Explanation((graph,)).collectives] == ["all_gather_into_tensor"]


def outputs_of(step: KernelStep) -> dict[int, object]:
    """The larger array that each output is stored into, or None, by slot."""
    return {slot: piece for slot, _, piece in step.outputs}


# ---------------------------------------------------------------- links


def test_the_time_of_a_collective() -> None:
    link = Link("line", rate=1e9, latency=1e-5)
    assert link.seconds("all_gather_into_tensor", 4_000_000, 4) == pytest.approx(1e-5 + 3e-3)
    assert link.seconds("all_reduce", 4_000_000, 4) == pytest.approx(1e-5 + 6e-3)
    assert link.seconds("all_reduce", 4_000_000, 1) == 1e-5


def test_known_gpus_have_links() -> None:
    for machine in known().values():
        assert machine.link is not None
        assert machine.link.source
        assert machine.link.rate < machine.main.total
