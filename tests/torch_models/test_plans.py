"""Plans of whole models: each operator once, and the same results when they are run by."""

from collections import Counter
from pathlib import Path

import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.torch.model import compile_model
from helpers.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore:.*lru_cache:UserWarning")  # of transformers' own

MODELS = ("llama", "whisper", pytest.param("mixtral", marks=pytest.mark.long))
"""A decoder, and an encoder with a decoder; a decoder with experts is long."""


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_by_its_plan(name: str, tmp_path: Path) -> None:
    model = ZOO[name].build(torch.float32, "sdpa")
    inputs = ZOO[name].inputs(24, dtype=torch.float32)
    plan = bb.plan(model, **inputs)
    run = Counter(name for step in plan.steps for name in step.operators)
    assert set(run.values()) == {1}
    plan.save(tmp_path / "plan.json")
    loaded = bb.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    torch._dynamo.reset()
    with torch.no_grad():
        usual, planned = compile_model(model), compile_model(model, plan=loaded, strict=True)
        wanted, found = (torch.utils._pytree.tree_leaves(f(**inputs)) for f in (usual, planned))
    pairs = zip(wanted, found, strict=True)
    assert all(torch.equal(x, y) for x, y in pairs if isinstance(x, torch.Tensor))
    kernels = [k.name for step in plan.steps if step.kernels for k in step.kernels.launches]
    assert sorted(k.name for k in planned.explanation.kernels) == sorted(kernels)
    read = sum(k.bytes_read for k in usual.explanation.kernels)
    assert read == sum(step.bytes_read for step in plan.steps if step.kernels)
