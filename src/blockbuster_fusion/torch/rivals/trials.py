"""Trials: kernels are measured once where a prediction does not decide.

A prediction may be wrong by a factor. If kernels would win by less than that, or lose by little,
they are compiled and measured, so that no gain is given away for doubt. What is found is stored as
tuning stores it. All trials of a model together have some seconds.
"""

import time
from collections.abc import Callable

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.tuning_database import Record
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.tuning import Subject, Tuner

SECONDS = {"cpu": 10.0, "cuda": 0.0}
"""The time for all trials of a model. Triton's compiler takes too long for them."""
LEAST = 50e-6
"""The time of PyTorch's operators from which on a trial is worth it."""
DOUBT = 1.25
"""The factor by which kernels may seem slower, and be tried."""


class Trials:
    """The trials of a model, as long as there is time."""

    def __init__(self, tuner: Tuner, target: str) -> None:
        self.tuner, self.left = tuner, SECONDS[target]

    def is_wanted(self, estimate: Estimate, ours: float, limit: float) -> bool:
        """True if `ours`, the seconds of an estimate, leave open whether `limit` is more."""
        is_open = ours * estimate.error >= limit and ours < limit * DOUBT
        return self.left > 0 and limit > LEAST and is_open and estimate.basis == "predicted"

    def first(self, subject: Callable[[], Subject]) -> tuple[Choice, Record] | None:
        """The measured first choice of a subject; None if it does not run, or is not exact."""
        start = time.monotonic()
        try:
            return self.tuner.first(subject())
        except BlockbusterError as error:
            log.debug("not tried: %s", error)
            return None
        finally:
            self.left -= time.monotonic() - start
