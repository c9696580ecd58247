"""Models are not timed as a whole: times would decide what runs."""

import pytest

from blockbuster_fusion.torch.rivals.whole_model import Attempt, WholeModel


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(self: WholeModel, first: Attempt, *, tunes: bool) -> Attempt:
        return first

    monkeypatch.setattr(WholeModel, "faster", kept)
