"""Texts that models generate are those of eager, word for word."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import CompileConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

import blockbuster_fusion as bb
from helpers.torch_running import Watched
from helpers.zoo import FIRST_WORD, VOCABULARY, ZOO

NAMES = ("llama", "qwen3", "gemma", "gpt2")
NEW_WORDS = 12
LONG = pytest.mark.long
GRAPHS = {"dynamic": 3, "static": 2}
"""The first call, and the others; a growing cache is seen to grow only at the third."""
SHORT = {("llama", "dynamic", "eager"), ("gpt2", "static", "sdpa")}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bb.register_backend()
    torch._dynamo.reset()
    counters.clear()


def prompts() -> dict[str, Tensor]:
    """Two texts, the second padded on its left."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(FIRST_WORD, VOCABULARY, (2, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def generate(model: PreTrainedModel, cache: str, **more: object) -> GenerateDecoderOnlyOutput:
    """The likeliest words one after another, and the scores of all words."""
    return model.generate(
        **prompts(),
        do_sample=False,
        max_new_tokens=NEW_WORDS,
        min_new_tokens=NEW_WORDS,
        use_cache=True,
        cache_implementation=cache,
        output_logits=True,
        return_dict_in_generate=True,
        **more,
    )


def build(name: str, attention: str) -> PreTrainedModel:
    return ZOO[name].build(torch.float32, attention)


def check(found: GenerateDecoderOnlyOutput, expected: GenerateDecoderOnlyOutput) -> None:
    """The same words, chosen for the same scores."""
    assert torch.equal(found.sequences, expected.sequences)
    for x, y in zip(found.logits, expected.logits, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "cache", "attention"),
    [
        pytest.param(*case, marks=() if case in SHORT else LONG)
        for case in product(NAMES, GRAPHS, ("eager", "sdpa"))
    ],
)
@torch.no_grad()
def test_generated_words(name: str, cache: str, attention: str) -> None:
    """With a cache that grows, and with one that is written in place."""
    expected = generate(build(name, attention), cache)
    assert len(set(expected.sequences[:, -NEW_WORDS:].flatten().tolist())) > 4  # words do vary
    model = build(name, attention)
    model.forward = torch.compile(model.forward, backend="blockbuster")
    check(generate(model, cache), expected)
    assert counters["stats"]["unique_graphs"] == GRAPHS[cache]
    assert not counters["graph_break"]


@pytest.mark.parametrize("name", ["llama", *(pytest.param(n, marks=LONG) for n in NAMES[1:])])
@torch.no_grad()
def test_generate_compiles_by_itself(name: str) -> None:
    """`generate` compiles each step after the first where the cache is static."""
    expected = generate(build(name, "sdpa"), "static")
    config = CompileConfig(backend="blockbuster")
    config._compile_all_devices = True  # on a CPU it would not
    check(generate(build(name, "sdpa"), "static", compile_config=config), expected)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@torch.no_grad()
def test_kernels_write_into_a_static_cache() -> None:
    """New keys and values are stored by kernels, but for the first call, which makes the cache."""
    expected = generate(build("llama", "sdpa"), "static")
    model = build("llama", "sdpa")
    watched = Watched(model.forward, library="never")
    model.forward = watched
    check(generate(model, "static"), expected)
    operators = [node.name for node in watched.graphs[-1].operated]
    assert not [name for name in operators if name.startswith("index_put")]
    kernels = [k.listing for k in watched.explanation.kernels]
    assert any(" at t" in listing for listing in kernels)
