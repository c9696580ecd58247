"""The terms on which kernels are weighed against PyTorch's operators."""

import math
from dataclasses import dataclass, field

from blockbuster_fusion.schedule.cost import ERRORS
from blockbuster_fusion.torch.rivals.composites import Called
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.fusers import CAREFUL, EVEN, TRYING, TRYING_ROWS, Attitude
from blockbuster_fusion.torch.rivals.trial_time import TrialTime

MEASURED = 1.02
"""The factor by which a measured kernel must be faster."""
ALL = frozenset({"all"})
"""Gives up the parts of all kinds."""
PLAN = {"cpu": 8e-6, "cuda": 5e-6}
"""Seconds of a call of a compiled graph beside its parts, as benchmarks/torch_calls.py finds them:
3 to 7 µs. The captured graph runs without."""
CALL = {"cpu": 40e-6, "cuda": 20e-6}
"""Seconds of a call of torch.compile on the host of a device, as benchmarks/never_slower.py finds
them: 20 to 100 µs on two cores without a GPU, 13 to 22 µs beside an H200."""
GUARDED, GUARD = 3e-6, 0.25e-6
"""Seconds of a call of compiled code without torch.compile, and of the guards of each input, as
benchmarks/torch_calls.py finds them: 2 to 3 µs and 0.2 µs."""


def guarded_call(inputs: int) -> float:
    """Seconds of a call of compiled code whose guards are checked without torch.compile."""
    return GUARDED + GUARD * inputs


@dataclass(frozen=True)
class Weighing:
    """The terms on which kernels are weighed against PyTorch's operators."""

    measures: bool = False
    """True to measure kernels rather than to predict their times."""
    tries: bool = False
    """True if the kernels that win are measured, and selected anew if they are slower by much."""
    tries_products: bool = False
    """True if so are those with products, which take long to compile."""
    replayed: bool = False
    """True if launches are replayed, so that the time of the host does not count."""
    called: Called = field(default_factory=dict)
    """The composites that the model calls itself; some are still whole."""
    given_up: frozenset[str] = frozenset()
    """The kinds of parts that were slower in the whole model, or ALL."""
    thorough: bool = False
    """True to look for the best kernels even of parts whose bound has lost, to tell of them."""
    beside: float = 0.0
    """Seconds of a call beside the compiled model that the model itself does without."""

    estimates: dict[object, Estimate] = field(default_factory=dict, compare=False)
    """The times of kernels that are known; all graphs and plans of a model share them."""
    trial_time: TrialTime = field(default_factory=TrialTime, compare=False)
    """The time for measuring kernels once; all graphs and plans of a model share it."""

    @property
    def attitude(self) -> Attitude:
        """The powers of their error with which predictions count, without and with products."""
        if self.measures:
            return EVEN
        tried = TRYING if self.tries_products else TRYING_ROWS
        return tried if self.tries else CAREFUL

    def margin(self, target: str, *, has_product: bool) -> float:
        """The factor by which the least time of kernels must win: the error that counts."""
        return math.pow(ERRORS[target][has_product], self.attitude[has_product])

    def call_cost(self, target: str) -> float:
        """Seconds of a call beside the parts of a graph."""
        return PLAN[target] + self.beside
