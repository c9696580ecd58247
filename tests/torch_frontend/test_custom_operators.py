"""A user's own operators: matched by their definitions, chosen where they are the cheapest."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BadOperator, WrongKind
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.rivals import library
from blockbuster_fusion.torch.rivals.custom import CustomOperator
from blockbuster_fusion.torch.rivals.whole_model import Untimed, written_inputs
from helpers.effort import crossed

EPS = 1e-6
FAST, USUAL, SLOW = 1e-12, 1e-3, 1.0


def norm_linear(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
    normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return F.linear(normal * scale, weight)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def ops() -> Iterator["Operators"]:
    made = Operators()
    yield made
    made.library._destroy()


@pytest.fixture(scope="module")
def own() -> Iterator[CustomOperator]:
    """The declared product of a norm, which many tests read: it takes a second to declare."""
    made = Operators()
    yield made.norm_linear("norm_linear", norm_linear)
    made.library._destroy()


class Operators:
    """Registers operators in a package of a user's, until the test ends."""

    def __init__(self) -> None:
        self.library = torch.library.Library("mine", "FRAGMENT")

    def __call__(
        self,
        name: str,
        schema: str,
        function: Callable[..., Any],
        fake: Callable[..., Any] | None = None,
    ) -> Any:
        """The operator with an implementation, and a fake one."""
        self.library.define(name + schema)
        self.library.impl(name, function, "CompositeExplicitAutograd")
        if fake is not None:
            torch.library.register_fake(f"mine::{name}", fake, lib=self.library)
        return getattr(torch.ops.mine, name)

    def norm_linear(self, name: str, definition: Callable[..., Tensor]) -> CustomOperator:
        """The product of a norm as an operator that has a definition, and is declared as ours."""
        schema = "(Tensor x, Tensor scale, Tensor weight, float eps) -> Tensor"
        made = self(name, schema, lambda *given: definition(*given).clone(), rows)
        inputs = torch.randn(3, 5, 24), torch.randn(24), torch.randn(16, 24)
        return bb.custom_operator(made, norm_linear, *inputs, EPS)


def rows(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


class Layer(nn.Module):
    """The same as `norm_linear`, as models write it: operands swapped, axes counted otherwise."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))
        self.out = nn.Linear(width, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normal = torch.rsqrt((x**2).mean(2, keepdim=True) + 1e-6) * x  # a name may be an input
        return self.out(self.scale * normal).relu()


def set_times(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Makes the user's operators take a time, and PyTorch's the usual one, each."""

    def timed(_: object, name: str, *rest: object) -> Seconds:
        return Seconds(seconds if name.startswith("mine.") else USUAL)

    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)


def graph_of(model: Callable[..., Any], *inputs: Tensor, **options: Any) -> CompiledGraph:
    """The only graph of a compiled model, whose results are right."""
    with torch.no_grad():
        made = bb.compile(model, *inputs, **{"strict": True, "library": "auto"} | options)
        torch.testing.assert_close(made(*inputs), model(*inputs))
    (graph,) = made.graphs
    return graph


def chosen(graph: CompiledGraph) -> list[str]:
    """The user's operators that a graph calls."""
    found = (str(n.target) for n in graph.analysis.nodes)
    return [name.split(".")[1] for name in found if name.startswith("mine.")]


# ---------------------------------------------------------------- choices


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_is_matched_several_times_with_other_sizes(
    own: CustomOperator, monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    set_times(monkeypatch, FAST)
    model = nn.Sequential(Layer(32, 64), Layer(64, 64), Layer(64, 48)).eval()
    graph = graph_of(model, torch.randn(2, 7, 32), operators=[own], dynamic=dynamic)
    assert chosen(graph) == ["norm_linear"] * 3
    assert all(x.recognised == ("mine.norm_linear.default",) for x in graph.chosen)
    assert [x.library.total() for x in graph.chosen] == [FAST] * 3
    assert "as norm_linear" in str(graph.chosen[0])
    assert "kernels" in str(graph.chosen[0])


@pytest.mark.parametrize("shape", [(1, 7, 32), (2, 1, 32), (1, 1, 32)])
def test_lengths_of_one_are_matched(
    own: CustomOperator, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    set_times(monkeypatch, FAST)
    graph = graph_of(Layer(32, 48).eval(), torch.randn(shape), operators=[own])
    assert chosen(graph) == ["norm_linear"]


def test_a_slow_one_is_not_chosen(own: CustomOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    set_times(monkeypatch, SLOW)
    graph = graph_of(Layer(32, 48).eval(), torch.randn(2, 7, 32), operators=[own])
    assert chosen(graph) == []
    assert not any(x.recognised for x in graph.chosen)


def test_the_faster_of_two_is_chosen(ops: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(_: object, name: str, *rest: object) -> Seconds:
        return Seconds({"mine.gate": 2 * FAST, "mine.gate_down": FAST}.get(name[:-8], USUAL))

    def gate_down(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return F.linear(F.silu(x) * y, w)

    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)
    gate = ops("gate", "(Tensor x, Tensor y) -> Tensor", lambda x, y: F.silu(x) * y, first)
    down = ops("gate_down", "(Tensor x, Tensor y, Tensor w) -> Tensor", gate_down, columns)
    a, b, w = torch.randn(6, 8), torch.randn(6, 8), torch.randn(12, 8)
    both = [
        bb.custom_operator(gate, lambda x, y: F.silu(x) * y, a, b),
        bb.custom_operator(down, gate_down, a, b, w),
    ]
    graph = graph_of(gate_down, a, b, w, operators=both)
    assert chosen(graph) == ["gate_down"]


def first(x: Tensor, *others: Tensor) -> Tensor:
    return torch.empty_like(x)


def columns(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


def test_real_times_decide(own: CustomOperator) -> None:
    """Nothing is made up: the operator is measured as PyTorch's are."""
    graph = graph_of(Layer(32, 48).eval(), torch.randn(2, 7, 32), operators=[own])
    assert chosen(graph) in ([], ["norm_linear"])


def test_explain_shows_it(own: CustomOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    set_times(monkeypatch, FAST)
    options = {"operators": [own], "library": "auto"}
    with torch.no_grad():
        found = bb.explain(Layer(32, 48).eval(), torch.randn(2, 7, 32), options=options)
    (choice,) = [x for x in found.library if x.recognised]
    assert choice.recognised == ("mine.norm_linear.default",)
    assert choice.kernels.total() > choice.library.total() == FAST
    assert "as norm_linear" in str(found)


# ---------------------------------------------------------------- matches

ATTENTION = (torch.randn(2, 3, 6, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8))


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


DEFINITIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "softmax": (lambda x: (x * 0.5).softmax(-1), (torch.randn(4, 6),)),
    "layer norm": (
        lambda x, w, b: F.gelu(F.layer_norm(x, x.shape[-1:], w, b)),
        (torch.randn(3, 8), torch.randn(8), torch.randn(8)),
    ),
    "attention": (attended, ATTENTION),
    "mean of squares": (lambda x: x.square().mean(-1).sqrt(), (torch.randn(4, 6),)),
    "half": (lambda x: x[..., : x.shape[-1] // 2].sin() * 2, (torch.randn(4, 6),)),
    "rotated": (
        lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1).cos(),
        (torch.randn(4, 6),),
    ),
    "product and row": (
        lambda x, w, b: torch.addmm(b, x, w).tanh(),
        (torch.randn(4, 6), torch.randn(6, 8), torch.randn(8)),
    ),
    "clamped": (lambda x: x.clamp(min=0, max=6) / 6, (torch.randn(4, 6),)),
    "causal": (lambda x: x.exp().tril().sum(-1), (torch.randn(6, 6),)),
}
BFLOAT = {
    "cast": (lambda x: F.silu(x.float()).to(x.dtype) + 1, (torch.randn(4, 6).bfloat16(),)),
}


def longer(x: Tensor) -> Tensor:
    """An array of other sizes, with the same rank and the same last axis of an attention."""
    shape = [n if x.dim() == 4 and i == 3 else 2 * n for i, n in enumerate(x.shape)]
    return torch.randn(shape).to(x.dtype)


@pytest.mark.parametrize(("name", "is_longer"), crossed([*DEFINITIONS, *BFLOAT], [False, True]))
def test_definitions_are_matched(
    name: str, is_longer: bool, ops: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_times(monkeypatch, FAST)
    definition, inputs = {**DEFINITIONS, **BFLOAT}[name]
    letters = ", ".join(f"Tensor {letter}" for letter in "abc"[: len(inputs)])

    def run(*given: Tensor) -> Tensor:
        return definition(*given).clone()

    made = ops("own", f"({letters}) -> Tensor", run, run)
    own = bb.custom_operator(made, definition, *inputs)
    given = [*map(longer, inputs)] if is_longer else inputs
    graph = graph_of(definition, *given, operators=[own])
    assert chosen(graph) == ["own"]


MISSES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "another constant": lambda x, g, w: norm_linear(x, g, w, 1e-5),
    "another axis": lambda x, g, w: F.linear(
        x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + EPS) * g, w
    ),
    "another rank": lambda x, g, w: norm_linear(x[0], g, w, EPS),
    "another dtype": lambda x, g, w: norm_linear(x.double(), g.double(), w.double(), EPS),
    "another operator": lambda x, g, w: F.linear(
        x / torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * g, w
    ),
    "other operands": lambda x, g, w: F.linear(
        x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + EPS) * g, w
    ),
    "a wide scale": lambda x, g, w: norm_linear(x, g.expand(7, 24), w, EPS),
    "read in between": lambda x, g, w: (lambda y: (F.linear(y * g, w).relu(), y.relu()))(
        x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    ),
    "in another order": lambda x, g, w: norm_linear(x.transpose(0, 1), g, w, EPS).relu(),
}


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_are_left_alone(
    name: str, own: CustomOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_times(monkeypatch, FAST)
    inputs = torch.randn(2, 7, 24), torch.randn(24), torch.randn(16, 24)
    assert chosen(graph_of(MISSES[name], *inputs, operators=[own])) == []


def test_an_operand_may_be_given_twice(ops: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operands of the definition are one array here; not the other way round."""
    set_times(monkeypatch, FAST)
    made = ops("twice", "(Tensor a, Tensor b) -> Tensor", lambda a, b: a.sin() * b.cos(), first)
    x, y = torch.randn(2, 5, 6)
    own = bb.custom_operator(made, lambda a, b: a.sin() * b.cos(), x, y)
    assert chosen(graph_of(lambda x: x.sin() * x.cos(), x, operators=[own])) == ["twice"]
    one = ops("once", "(Tensor a) -> Tensor", lambda a: a.sin() * a.cos(), first)
    own = bb.custom_operator(one, lambda a: a.sin() * a.cos(), x)
    assert chosen(graph_of(lambda x, y: x.sin() * y.cos(), x, y, operators=[own])) == []


def test_conditions_of_a_definition_count(ops: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer rows it is another function, so its operator is another one too."""

    def scaled(x: Tensor) -> Tensor:
        return x.sin() * 2 if x.shape[-1] < 32 else x.cos() * 2

    set_times(monkeypatch, FAST)
    own = bb.custom_operator(
        ops("scaled", "(Tensor x) -> Tensor", scaled, first), scaled, torch.randn(4, 8)
    )
    plain: Callable[[Tensor], Tensor] = lambda x: x.sin() * 2  # noqa: E731
    assert chosen(graph_of(plain, torch.randn(4, 31), operators=[own])) == ["scaled"]
    assert chosen(graph_of(plain, torch.randn(4, 32), operators=[own])) == []


def test_misc_operators_are_not_crossed(ops: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    def spread(x: Tensor) -> Tensor:
        return x.sin().sort(-1).values * 2

    set_times(monkeypatch, FAST)
    made = ops("spread", "(Tensor x) -> Tensor", lambda x: spread(x).clone(), first)
    own = bb.custom_operator(made, spread, torch.randn(4, 8))
    assert chosen(graph_of(spread, torch.randn(4, 8), operators=[own])) == []


# ---------------------------------------------------------------- refusals


def refusal(made: Any, definition: Callable[..., Any], *inputs: Any) -> str:
    with pytest.raises(BadOperator) as caught:
        bb.custom_operator(made, definition, *inputs)
    return str(caught.value)


def test_a_wrong_operator_is_refused(ops: Operators) -> None:
    def wrong(*given: Any) -> Tensor:
        return norm_linear(*given) * 1.001

    with pytest.raises(BadOperator, match=r"mine.wrong.default: gives other numbers than"):
        ops.norm_linear("wrong", wrong)


def test_a_wrong_form_is_refused(ops: Operators) -> None:
    x = torch.randn(4, 6)
    turned = ops("turned", "(Tensor x) -> Tensor", lambda x: x.sin().T.contiguous().T, first)
    assert "its result is torch.float32 (4, 6) with strides (1, 4)" in refusal(turned, torch.sin, x)
    faked = ops("faked", "(Tensor x) -> Tensor", torch.sin, lambda x: x.new_empty(3))
    assert "its fake result is" in refusal(faked, torch.sin, x)
    bits = ops("bits", "(Tensor x) -> Tensor", lambda x: (x > 0) ^ (x > 1), torch.signbit)
    assert "gives other numbers" in refusal(bits, lambda x: x > 0, 2 * x)


def test_effects_are_refused(ops: Operators) -> None:
    x = torch.randn(4, 6)
    writing = ops("writing", "(Tensor(a!) x) -> Tensor", torch.sin)
    assert "writes to x" in refusal(writing, torch.sin, x)
    viewing = ops("viewing", "(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1))
    assert "gives a view" in refusal(viewing, lambda x: x.view(-1), x)
    several = ops("several", "(Tensor x) -> (Tensor, Tensor)", lambda x: (x.sin(), x.cos()))
    assert "gives 2 results" in refusal(several, torch.sin, x)
    assert "is random" in refusal(torch.ops.aten.bernoulli.default, torch.sin, x)
    assert "several overloads" in refusal(torch.ops.aten.add, torch.sin, x)
    assert "is no operator" in refusal(torch.sin, torch.sin, x)


def test_definitions_that_cannot_be_matched_are_refused(ops: Operators) -> None:
    x, held = torch.randn(4, 6), torch.randn(6)
    made = ops("unary", "(Tensor x) -> Tensor", torch.sin, first)
    binary = ops("binary", "(Tensor x, Tensor y) -> Tensor", lambda x, y: x.sin(), first)
    assert "reads arrays that are no arguments" in refusal(made, lambda x: x * held, x)
    assert "computes nothing" in refusal(made, lambda x: x, x)
    assert "does not read the arrays 1" in refusal(binary, lambda x, y: x.sin(), x, x + 1)
    assert "cannot be captured" in refusal(made, lambda x: x if x.sum() > 0 else -x, x)
    assert "is random" in refusal(made, lambda x: x * torch.rand_like(x), x)
    assert "needs the inputs of a call" in refusal(made, torch.sin)
    assert "lists are not supported" in refusal(made, torch.sin, x, [x])


def test_the_option_takes_declared_operators() -> None:
    with pytest.raises(WrongKind, match=r"bb.custom_operator"):
        bb.compile(torch.sin, torch.randn(3), operators=[torch.ops.aten.sin])


# ---------------------------------------------------------------- around it


def test_declared_operators_may_be_timed(
    own: CustomOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_times(monkeypatch, FAST)
    x = torch.randn(2, 7, 32)
    graph = graph_of(Layer(32, 48).eval(), x, operators=[own])
    with pytest.raises(Untimed, match="of another package"):
        written_inputs([graph], [x])
    assert written_inputs([graph], [x], {own.operator}) == []


def test_times_are_not_kept_between_processes(
    own: CustomOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of a user's operator may be another in the next one."""
    kept = list[str]()

    def put(_: object, name: str, *rest: object) -> None:
        kept.append(name)

    monkeypatch.setattr(type(library.database()), "put_library", put)
    graph_of(Layer(32, 56).eval(), torch.randn(2, 9, 32), operators=[own])
    assert not any("mine" in name for name in kept)


def test_other_options_leave_it_out(own: CustomOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    set_times(monkeypatch, FAST)
    options = {"operators": [own], "library": "never"}
    assert chosen(graph_of(Layer(32, 48).eval(), torch.randn(2, 7, 32), **options)) == []
