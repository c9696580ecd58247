"""What a test of models leaves behind, or measures, does not change another one."""

from collections.abc import Iterator

import pytest
import torch._dynamo

from blockbuster_fusion.torch.rivals.whole_model import Attempt, WholeModel


@pytest.fixture(autouse=True)
def _untimed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times no model as a whole, but where that is tested: times would decide what runs."""

    def kept(self: WholeModel, first: Attempt, *, tunes: bool) -> Attempt:
        return first

    if request.path.stem not in ("test_whole_model", "test_left_alone"):
        monkeypatch.setattr(WholeModel, "faster", kept)


@pytest.fixture(autouse=True)
def _static() -> Iterator[None]:
    """Has Dynamo take sizes as static: in PyTorch 2.11, calls of several threads change that."""
    with torch._dynamo.config.patch(assume_static_by_default=True):
        yield
