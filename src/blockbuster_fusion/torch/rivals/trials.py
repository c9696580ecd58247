"""Trials: kernels are measured once where a prediction does not decide.

A prediction may be wrong by a factor. If kernels would win or lose by less than that, they are
compiled and measured. So no gain is given away for doubt. Measurements are stored as
tuning stores them. All trials of a model together have some seconds.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.tuning_database import Record
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.reasons import sentence
from blockbuster_fusion.torch.rivals.trial_time import TrialTime
from blockbuster_fusion.torch.rivals.tuning import Subject, Tuner

T = TypeVar("T")
Tried = tuple[Choice, Record] | str
"""A measured choice, or the reason why there is none."""

LEAST, MOST = 50e-6, 0.2
"""The times of PyTorch's operators for which a trial is worth it, and takes neither long nor much
memory: results are checked against those of PyTorch's operators in float64."""


class Trials:
    """The trials of the parts of a graph, as long as there is time."""

    def __init__(
        self, tuner: Tuner, target: str, time_left: TrialTime, *, strict: bool = False
    ) -> None:
        """With `strict`, faults are raised."""
        self.tuner, self.target, self.time_left, self.strict = tuner, target, time_left, strict

    @property
    def has_time(self) -> bool:
        return self.time_left.left[self.target] > 0

    def is_wanted(self, estimate: Estimate, ours: float, limit: float) -> bool:
        """True if `ours`, the seconds of an estimate, leave open whether `limit` is more."""
        is_open = limit / estimate.error <= ours < limit * estimate.error
        is_worth_it = LEAST < limit < MOST and estimate.basis == "predicted"
        return self.has_time and is_worth_it and is_open

    @property
    def together(self) -> int:
        """The number of subjects that are compiled at the same time."""
        return self.tuner.workers.count

    def first(self, subjects: Iterable[Callable[[], Subject]]) -> list[Tried]:
        """The measured first choice of each subject, or the reason why there is none.

        All are compiled at the same time, before the first one is measured.
        """
        start = time.monotonic()
        try:
            made = [self.guarded(subject) for subject in subjects]
            known = [x for x in made if isinstance(x, Subject)]
            self.guarded(lambda: self.tuner.compile_first(known, self.time_left.left[self.target]))
            return [x if isinstance(x, str) else self.guarded(partial(self.one, x)) for x in made]
        finally:
            self.time_left.left[self.target] -= time.monotonic() - start

    def one(self, subject: Subject) -> Tried:
        """The measured first choice of a subject, or the reason why there is none."""
        found = self.tuner.first(subject)
        if found is not None:
            return found
        log.warning("tried, but does not run or is not exact: %s", subject.program.name)
        return "in a trial, they did not run or were not exact"

    def guarded(self, work: Callable[[], T]) -> T | str:
        """The result of some work, or the reason why it failed, which a plan then tells."""
        try:
            return work()
        except Exception as error:  # whatever it is: PyTorch runs the part, and this is told
            if self.strict:
                raise
            log.warning("kernels were not tried: %s: %s", type(error).__name__, error)
            return f"their trial failed: {type(error).__name__}: {sentence(error)}"
