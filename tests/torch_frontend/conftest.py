"""Fixtures of models' tests: nothing that one leaves behind or measures changes another one."""

from collections import OrderedDict
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
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undoes what PyTorch 2.11 leaves: settings, if threads call at once; a hook of failed exports.

    Sizes became dynamic by the one, and graphs broke where a buffer is written by the other.
    """
    monkeypatch.setattr(torch.nn.modules.module, "_global_buffer_registration_hooks", OrderedDict())
    with torch._dynamo.config.patch(assume_static_by_default=True):
        yield
