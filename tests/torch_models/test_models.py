"""Whole models: as exact as eager, all fused, and one flash kernel for each attention."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.export import Dim

import blockbuster_fusion as bb
from blockbuster_fusion.torch.explain import Explanation
from helpers.zoo import ARCHITECTURES, ZOO, Architecture, Takes
from helpers.zoo_reference import eager_errors, reference, relative_errors, tolerances

pytestmark = pytest.mark.filterwarnings("ignore:.*lru_cache:UserWarning")  # of transformers' own

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LENGTHS = (24, 17, 9)
LONGER = 41
ONE_REGION = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "bert", "vit")


@dataclass(frozen=True)
class Case:
    """One model, and how it is called."""

    name: str
    dtype: str = "float32"
    attention: str = "eager"
    dynamic: bool = False

    @property
    def architecture(self) -> Architecture:
        return ZOO[self.name]

    def build(self) -> torch.nn.Module:
        return self.architecture.build(DTYPES[self.dtype], self.attention)

    def inputs(self, length: int = LENGTHS[0]) -> dict[str, Tensor]:
        return self.architecture.inputs(length, dtype=DTYPES[self.dtype])

    def sizes(self, batch: bool = False) -> dict[str, dict[int, Dim]]:
        """The dynamic sizes for torch.export: the lengths of texts, and of batches if `batch`."""
        count, words, source = (Dim(x, min=2, max=512) for x in ("batch", "words", "source"))
        lengths = {"input_ids": source, "attention_mask": source}
        if self.architecture.takes is Takes.TEXT:
            lengths = dict.fromkeys(lengths, words)
        lengths |= {"decoder_input_ids": words, "decoder_attention_mask": words}
        first = {0: count} if batch else {}
        return {x: first | ({1: lengths[x]} if x in lengths else {}) for x in self.inputs()}

    def check(self, outputs: Sequence[Tensor], inputs: dict[str, Tensor]) -> None:
        """Each output is within twice eager's own error of a float64 run."""
        __tracebackhide__ = True
        dtype = DTYPES[self.dtype]
        exact = reference(self.architecture, dtype, self.attention, inputs)
        eager = eager_errors(self.architecture, dtype, self.attention, inputs, exact)
        assert [y.dtype for y in outputs] == [dtype] * len(exact)
        found = relative_errors(outputs, exact)
        allowed = tolerances(dtype, eager)
        assert all(x <= y for x, y in zip(found, allowed, strict=True)), (found, allowed)

    def check_fused(self, explained: Explanation) -> None:
        """Nothing falls back, nearly all operators are fused, and each attention is one kernel."""
        __tracebackhide__ = True
        assert explained.fallbacks == []
        assert explained.halved == []
        assert explained.coverage >= self.architecture.coverage, explained.misc
        flash = [kernel for kernel in explained.kernels if kernel.is_flash]
        assert len(flash) == self.architecture.attentions
        assert explained.edges_after < explained.edges_before

    def check_explanation(self, explained: Explanation) -> None:
        """All is fused. In float32, no cast is left out, and each layer is one region."""
        __tracebackhide__ = True
        self.check_fused(explained)
        if self.dtype == "float32":
            assert explained.elided_casts == []
        if self.dtype == "float32" and self.name in ONE_REGION:
            names = [region.name for region in explained.regions]
            layers = [name for name in names if name]
            assert len(layers) == 2
            assert len(set(layers)) == 2
            around = ["", *layers, ""]  # the words before them, the output behind them
            assert names in (around, around[:-1])  # or the output ends the last layer

    def __str__(self) -> str:
        lengths = "dynamic" if self.dynamic else "static"
        return f"{self.name}-{self.dtype}-{self.attention}-{lengths}"


SHORT = (
    Case("llama", "float32", "eager"),
    Case("qwen3", "bfloat16", "sdpa"),
    Case("gemma2", "bfloat16", "eager"),
    Case("gpt2", "float32", "sdpa"),
    Case("bert", "bfloat16", "sdpa"),
    Case("vit", "float32", "eager"),
    Case("t5-encoder", "float32", "eager", dynamic=True),
)
"""A few that differ in as much as they can; the others are long.

Qwen2 is Llama with biases, which GPT-2 and BERT have; Mistral's windows are exported below.
"""
SHORT_EXPORTED = (
    Case("qwen3", "bfloat16", "sdpa"),
    Case("mistral", "float32", "sdpa", dynamic=True),
    Case("gpt2", "bfloat16", "eager", dynamic=True),
    Case("mpt", "float32", "eager", dynamic=True),
)
LEAF_SPEC = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
"""torch.export itself copies a class that it deprecates."""


def cases(short: Iterable[Case], lengths: Iterable[bool] = (False,)) -> list[object]:
    """Every model in each dtype and attention as pytest's parameters, long but for a few."""
    every = [
        Case(architecture.name, dtype, attention, dynamic)
        for architecture in ARCHITECTURES
        for dtype, attention, dynamic in product(DTYPES, architecture.kinds, lengths)
        if architecture.has_length or not dynamic
    ]
    short = set(short)
    assert short <= set(every)
    long = pytest.mark.long
    return [pytest.param(c, id=str(c), marks=() if c in short else long) for c in every]


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bb.register_backend()
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize("case", cases(SHORT, lengths=(False, True)))
@torch.no_grad()
def test_compiled(case: Case) -> None:
    """A compiled model is exact and fused, in one graph for all lengths where they are dynamic."""
    compiled = bb.compile(case.build(), dynamic=case.dynamic)
    for length in LENGTHS if case.dynamic else LENGTHS[:1]:
        inputs = case.inputs(length)
        case.check(case.architecture.output(compiled(**inputs)), inputs)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    if not case.dynamic:
        case.check_explanation(compiled.explanation)


@pytest.mark.parametrize("case", cases([Case("t5-encoder", "float32", "eager")]))
@torch.no_grad()
def test_explained(case: Case) -> None:
    """`bb.explain` describes a model as its compiled form describes itself."""
    case.check_explanation(bb.explain(case.build(), **case.inputs()))


@LEAF_SPEC
@pytest.mark.parametrize("case", cases(SHORT_EXPORTED, lengths=(False, True)))
@torch.no_grad()
def test_exported(case: Case) -> None:
    """A model that torch.export has captured gives the same, for all lengths if it is for any."""
    shapes = case.sizes() if case.dynamic else None
    program = torch.export.export(
        case.build(), (), case.inputs(), strict=False, dynamic_shapes=shapes
    )
    compiled = bb.from_torch(program)
    for length in (*LENGTHS, LONGER) if case.dynamic else LENGTHS[:1]:
        inputs = case.inputs(length)
        case.check(case.architecture.output(compiled(**inputs)), inputs)
    case.check_fused(compiled.explanation)


@LEAF_SPEC
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x == "bert" else pytest.mark.long) for x in ZOO]
)
@torch.no_grad()
def test_exported_for_any_batch(name: str) -> None:
    """Both the length and the number of texts are any."""
    case = Case(name, attention=ZOO[name].kinds[-1], dynamic=True)
    program = torch.export.export(
        case.build(), (), case.inputs(), strict=False, dynamic_shapes=case.sizes(batch=True)
    )
    compiled = bb.from_torch(program)
    for length, batch in ((LENGTHS[0], 2), (LONGER, 3), (LENGTHS[1], 5)):
        inputs = case.architecture.inputs(length, batch)
        case.check(case.architecture.output(compiled(**inputs)), inputs)
    case.check_fused(compiled.explanation)


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("llama", "sdpa"),
        ("bert", "eager"),
        pytest.param("llama", "eager", marks=pytest.mark.long),
        pytest.param("bert", "sdpa", marks=pytest.mark.long),
    ],
)
@torch.no_grad()
def test_texts_without_padding(name: str, attention: str) -> None:
    """If no mask is given, causality is all there is of one."""
    case, inputs = Case(name, attention=attention), ZOO[name].inputs(padded=False)
    compiled = torch.compile(case.build(), backend="blockbuster")
    case.check(case.architecture.output(compiled(**inputs)), inputs)
