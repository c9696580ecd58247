"""The functions for users of PyTorch: torch.compile, bb.explain, bb.from_torch and bb.compile.

Every model runs: on kernels, or eagerly with a reason that `explain` lists.
"""

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockbuster_fusion as bb
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.torch import backend as torch_backend
from blockbuster_fusion.torch.explain import Explanation
from helpers.torch_running import Watched

INTERPRETED = {"target": "interpret"}
"""Enough where it is not the kernels that are looked at."""

generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def activated(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x @ y, -1) * 2


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# ------------------------------------------------------------------------ torch.compile


def test_by_name() -> None:
    """The package's entry point makes the backend known."""
    x, y = numbers(3, 4), numbers(4, 5)
    with torch.no_grad():
        made = torch.compile(activated, backend="blockbuster")(x, y)
    torch.testing.assert_close(made, activated(x, y))


def test_registering_twice_is_registering_once() -> None:
    bb.register_backend()
    bb.register_backend()
    assert torch._dynamo.list_backends(exclude_tags=()).count("blockbuster") == 1


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_of_torch_compile_are_taken(mode: str) -> None:
    x, y = numbers(3, 4), numbers(4, 5)
    with torch.no_grad():
        made = torch.compile(activated, backend="blockbuster", mode=mode)(x, y)
    torch.testing.assert_close(made, activated(x, y))


@pytest.mark.parametrize("options", [{}, INTERPRETED, {"target": "cpu", "threads": 1}])
def test_options(options: dict[str, Any]) -> None:
    x, y = numbers(3, 4), numbers(4, 5)
    with torch.no_grad():
        made = torch.compile(activated, backend="blockbuster", options=options)(x, y)
    torch.testing.assert_close(made, activated(x, y))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"mode": "fastest"}, "takes a mode of default, .*, not 'fastest'; leave it out"),
        ({"options": {"fuse": 1}}, "takes the options target, .*, not 'fuse'; see docs/pytorch.md"),
    ],
    ids=["mode", "options"],
)
def test_bad_modes_and_options_are_refused(given: dict[str, Any], sentence: str) -> None:
    x, y = numbers(3, 4), numbers(4, 5)
    with torch.no_grad(), pytest.raises(Exception, match=sentence):
        torch.compile(activated, backend=torch_backend.backend, **given)(x, y)
    with pytest.raises(WrongKind, match=sentence):
        bb.explain(activated, x, y, **given)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": "abacus"}, "target 'abacus': unknown; known are cpu, cuda, interpret"),
        ({"threads": 0}, "takes a number of threads from 1 on, not 0; leave it out"),
        ({"strict": "yes"}, "takes strict as True or False, not 'yes'"),
        ({"together": 3}, "takes together as a list of lists of names"),
    ],
    ids=["target", "threads", "strict", "together"],
)
def test_bad_values_of_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(bb.BlockbusterError, match=sentence):
        bb.explain(activated, numbers(3, 4), numbers(4, 5), options=options)


# ------------------------------------------------------------------------ strict


def rounded(x: Tensor, w: Tensor) -> Tensor:
    """A value that is rounded to bfloat16 in the middle, and then used in float32."""
    return ((x.float() * w.float()).to(torch.bfloat16).float() * 256).to(torch.bfloat16)


def test_casts_are_elided_and_listed() -> None:
    x, w = (numbers(4, 6).to(torch.bfloat16) for _ in range(2))
    explanation = bb.explain(rounded, x, w, options=INTERPRETED)
    assert "torch.float32 -> torch.bfloat16" in str(explanation.elided_casts[-1])


def test_strict_keeps_every_cast_where_the_model_has_it() -> None:
    x, w = (numbers(40, 60).to(torch.bfloat16) for _ in range(2))
    strict = Watched(rounded, strict=True, target="cpu")
    assert torch.equal(strict(x, w), rounded(x, w)), "rounded where eager rounds"
    assert not [c for c in strict.explanation.elided_casts if c.target == "torch.bfloat16"]


def test_strict_raises_instead_of_running_eagerly() -> None:
    def refused(x: Tensor) -> Tensor:
        return torch.div(x.sum(-1), 2, rounding_mode="trunc") + 1

    x = numbers(4, 6)
    Watched(refused, target="interpret").check(x)
    with pytest.raises(Exception, match=r"aten.div.Tensor_mode: division rounded towards zero"):
        Watched(refused, target="interpret", strict=True)(x)


# ------------------------------------------------------------------------ training


def test_training_runs_eagerly_with_the_right_gradients_and_one_warning() -> None:
    layer = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    x, wanted = numbers(5, 4), numbers(5, 3)

    def gradients(model: Callable[[Tensor], Tensor]) -> list[Tensor]:
        layer.zero_grad()
        (model(x) - wanted).square().mean().backward()
        return [p.grad.clone() for p in layer.parameters() if p.grad is not None]

    compiled = torch.compile(layer, backend="blockbuster")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = gradients(compiled)
        gradients(compiled)
    ours = [str(w.message) for w in caught if "blockbuster" in str(w.message)]
    assert len(ours) == 1
    assert "only inference is compiled" in ours[0]
    for ours_, eager in zip(found, gradients(layer), strict=True):
        torch.testing.assert_close(ours_, eager)


def test_a_model_that_was_trained_is_fused_without_gradients() -> None:
    layer = nn.Linear(4, 8)
    explanation = bb.explain(layer, numbers(5, 4), options=INTERPRETED)
    assert len(explanation.regions) == 1


# ------------------------------------------------------------------------ writing into inputs


class Counter(nn.Module):
    """Keeps past inputs in a buffer, as a static cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(6, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.seen.index_copy_(0, at, x * 2)
        self.calls += 1
        return self.seen.sum(0) + x


def writes_in_place(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    x.mul_(y)
    return x * 2


def puts(cache: Tensor, at: Tensor, x: Tensor) -> Tensor:
    cache.index_put_((at,), torch.exp(x))
    return cache * 2


def copies(cache: Tensor, x: Tensor) -> Tensor:
    cache[1:3].copy_(x * 2)
    cache[0] = x.sum(0)
    return cache.sum(0)


def reads_then_writes(x: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.exp(x)
    x.copy_(before * 2)
    return before, x + before


def test_inputs_that_are_written_into() -> None:
    """The results, and the inputs after the call, equal eager's."""
    rows = torch.tensor([4, 1])
    for function, inputs in (
        (writes_in_place, (numbers(4, 3), numbers(3))),
        (puts, (numbers(6, 3), rows, numbers(2, 3))),
        (copies, (numbers(4, 3), numbers(2, 3))),
        (reads_then_writes, (numbers(4, 3),)),
    ):
        Watched(function, target="interpret").check(*inputs)


def test_buffers_that_are_written_into() -> None:
    ours, eager = Counter(), Counter()
    compiled = torch.compile(ours, backend="blockbuster")
    with torch.no_grad():
        for step in range(3):
            x, at = numbers(2, 3), torch.tensor([step, step + 2])
            torch.testing.assert_close(compiled(x, at), eager(x, at))
    torch.testing.assert_close(ours.seen, eager.seen)
    assert ours.calls == 3


# ------------------------------------------------------------------------ calls that no kernel runs


def test_graph_breaks_are_listed() -> None:
    def broken(x: Tensor) -> Tensor:
        y = torch.exp(x)
        print("in the middle")
        return y * 2

    Watched(broken, target="interpret").check(numbers(4, 3))
    explanation = bb.explain(broken, numbers(4, 3), options=INTERPRETED)
    assert len(explanation.graphs) == 2
    assert len(explanation.graph_breaks) == 1
    assert "graph break: " in str(explanation)


def test_branches_on_data_break_the_graph() -> None:
    def branching(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    for x in (numbers(4).abs(), -numbers(4).abs()):
        Watched(branching, target="interpret").check(x)


def test_shapes_that_depend_on_data() -> None:
    def found(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nonzero(x * 2), x[x > 0] * 3

    Watched(found, target="interpret").check(numbers(4, 3))


def left(explanation: Explanation) -> str:
    """Everything that PyTorch runs, and why."""
    return "\n".join(map(str, (*explanation.misc, *explanation.fallbacks)))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.randn(4, 3, dtype=torch.complex64), "kernels do not compute with torch.complex64"),
        (torch.arange(-6, 6, dtype=torch.int8), "kernels do not compute with torch.int8"),
        (torch.arange(12, dtype=torch.uint8), "kernels do not compute with torch.uint8"),
        (torch.arange(12, dtype=torch.int16), "kernels do not compute with torch.int16"),
    ],
    ids=lambda x: str(getattr(x, "dtype", ""))[6:] or "x",
)
def test_dtypes_that_kernels_have_not(x: Tensor, reason: str) -> None:
    def used(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * x, (x + 1).sum()

    watched = Watched(used, target="interpret")
    found, wanted = watched(x), used(x)
    for ours, eager in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, eager)
    assert reason in left(watched.explanation)


def test_small_integers_become_floats_outside() -> None:
    """Quantised weights: the conversion is PyTorch's, the product is fused."""

    def scaled(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return x @ (w.float() * scale)

    w = torch.randint(-9, 9, (4, 5), dtype=torch.int8, generator=generator)
    watched = Watched(scaled, target="interpret")
    watched.check(numbers(3, 4), w, numbers(5))
    assert watched.explanation.fallbacks == []
    assert len(watched.explanation.regions) == 1


def test_float64_and_float16_are_computed() -> None:
    for dtype in (torch.float64, torch.float16):
        watched = Watched(activated, target="cpu")
        watched.check(numbers(3, 4).to(dtype), numbers(4, 5).to(dtype))
        assert left(watched.explanation) == ""


def test_sparse_tensors() -> None:
    def used(s: Tensor, x: Tensor) -> Tensor:
        return torch.sparse.mm(s, x) * 2

    s = torch.eye(4).to_sparse()
    x = numbers(4, 3)
    torch.testing.assert_close(Watched(used, target="interpret")(s, x), used(s, x))


def test_nested_tensors() -> None:
    def used(x: Tensor) -> Tensor:
        return x * 2 + 1

    x = torch.nested.nested_tensor([numbers(2, 3), numbers(4, 3)], layout=torch.jagged)
    found = Watched(used, target="interpret")(x)
    for ours, eager in zip(found.unbind(), used(x).unbind(), strict=True):
        torch.testing.assert_close(ours, eager)


def test_operators_that_the_table_has_not() -> None:
    def sorted_rows(x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.sort(torch.exp(x), -1)
        return values * 2, torch.cumsum(places, 0)

    watched = Watched(sorted_rows, target="interpret")
    watched.check(numbers(4, 6))
    assert "aten.sort.default" in left(watched.explanation)
    assert "not in the operator table" in left(watched.explanation)
    assert watched.explanation.fallbacks == []


def test_random_numbers_are_drawn_by_pytorch() -> None:
    def noisy(x: Tensor) -> Tensor:
        return torch.exp(x) + torch.rand(x.shape[0], 3)

    x = numbers(4, 3)
    watched = Watched(noisy, target="interpret")
    torch.manual_seed(3)
    wanted = noisy(x)
    torch.manual_seed(3)
    torch.testing.assert_close(watched(x), wanted)


def test_results_that_are_no_tensors() -> None:
    def several(x: Tensor) -> dict[str, Any]:
        return {"made": [x * 2, None], "count": x.shape[0], "name": "x", "flag": True}

    Watched(several, target="interpret").check(numbers(4, 3))


# ------------------------------------------------------------------------ explain


def test_explain_of_what_is_no_model() -> None:
    with pytest.raises(WrongKind, match="explain: takes a module, a function or an exported"):
        bb.explain(3, numbers(2))


def test_explain_takes_names_and_gives_data_and_text() -> None:
    explanation = bb.explain(activated, numbers(3, 4), y=numbers(4, 5))
    (kernel,) = explanation.kernels
    assert "aten.mm.default" in kernel.operators
    (data,) = explanation.data()["kernels"]
    assert data["listing"] == kernel.listing
    assert explanation.coverage == 1.0
    assert explanation.edges_after < explanation.edges_before
    assert "100.0% of the operators in kernels" in str(explanation)


def test_explain_of_a_compiled_model_looks_through_it() -> None:
    compiled = torch.compile(nn.Linear(4, 3), backend="blockbuster")
    assert len(bb.explain(compiled, numbers(2, 4), options=INTERPRETED).regions) == 1


# ------------------------------------------------------------------------ torch.export


class Attention(nn.Module):
    """Arguments by name, a buffer that is no weight, and a count that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 6)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, mask: Tensor, bias: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        scores = (x @ x.mT) * self.scale + bias
        weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
        return {"out": self.project(weights @ x), "calls": self.calls * 1}


def attention_inputs(length: int) -> tuple[Tensor, dict[str, Tensor]]:
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return numbers(2, length, 6), {"mask": mask, "bias": numbers(length, length)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_exported_programs(dynamic: bool) -> None:
    model = Attention()
    eager = copy.deepcopy(model)  # an exported program writes into the model's own buffers
    x, named = attention_inputs(5)
    length = torch.export.Dim("length", min=2, max=64)
    square = {0: length, 1: length}
    shapes = {"x": {1: length}, "mask": square, "bias": square}
    program = torch.export.export(model, (x,), named, dynamic_shapes=shapes if dynamic else None)
    compiled = bb.from_torch(program, target="interpret")
    for step, n in enumerate((5, 9, 3) if dynamic else (5,), 1):
        x, named = attention_inputs(n)
        found = compiled(x, bias=named["bias"], mask=named["mask"])  # in another order
        with torch.no_grad():
            wanted = eager(x, **named)
        torch.testing.assert_close(found["out"], wanted["out"])
        assert found["calls"] == step, "its own buffer is written"
    assert bb.explain(program, options=INTERPRETED).fallbacks == []


def test_from_torch_of_what_is_not_exported() -> None:
    with pytest.raises(WrongKind, match=r"from_torch: takes what torch.export.export gives"):
        bb.from_torch(nn.Linear(2, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_exported_program_called_otherwise_than_it_was_exported() -> None:
    program = torch.export.export(nn.Linear(4, 3), (numbers(2, 4),))
    compiled = bb.from_torch(program, target="interpret")
    with pytest.raises(WrongKind, match="arguments as it was exported with"):
        compiled(numbers(2, 4), numbers(2, 4))


# ------------------------------------------------------------------------ bb.compile


def test_compile_of_a_module_with_an_example() -> None:
    layer = nn.Linear(4, 3)
    x = numbers(2, 4)
    compiled = bb.compile(layer, x, target="cpu")
    assert len(compiled.explanation.kernels) == 1
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
        torch.testing.assert_close(compiled(x[:1]), layer(x[:1]))


def test_compile_of_a_function_with_tensors() -> None:
    x, y = numbers(3, 4), numbers(4, 5)
    compiled = bb.compile(activated, x, y=y, target="interpret")
    torch.testing.assert_close(compiled(x, y), activated(x, y))


def test_compile_refuses_what_it_does_not_know() -> None:
    with pytest.raises(Exception, match="abacus"):
        bb.compile(activated, numbers(3, 4), numbers(4, 5), target="abacus")
    with pytest.raises(bb.BlockbusterError):
        bb.compile(3)


# ------------------------------------------------------------------------ without PyTorch

WITHOUT_TORCH = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Missing())
import numpy as np
import blockbuster_fusion as bb

run = bb.compile(lambda x: np.exp(x) * 2, ("M", "K"), target="interpret")
for call in (lambda: bb.explain(print), lambda: bb.from_torch(None), bb.register_backend):
    try:
        call()
    except bb.BlockbusterError as error:
        print(error)
print("torch" in sys.modules)
"""


def test_without_torch() -> None:
    """The package works without PyTorch; functions that need it name the package to install."""
    made = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    *sentences, imported = made.stdout.splitlines()
    assert imported == "False"
    assert len(sentences) == 3
    for function, sentence in zip(
        ("explain", "from_torch", "register_backend"), sentences, strict=True
    ):
        assert sentence.startswith(f"{function}: ")
        assert "pip install 'blockbuster-fusion[torch]'" in sentence
