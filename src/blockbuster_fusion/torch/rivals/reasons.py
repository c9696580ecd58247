"""The reasons in words why PyTorch's operators run a part for which there might be kernels."""

from collections.abc import Callable

from blockbuster_fusion.plans.amounts import duration
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.rivals.estimate import Estimate

CLOSE = "kernels may be faster, but by less than the error of their time"
ELSEWHERE = "kernels may be faster here, but other parts were chosen around it"
WHOLE = "kernels are slower in the model as a whole"
CALL = "all kernels of the model together gain less than a call of the plan costs"
LATER = "kernels are slower for sizes of later calls"
MOST_LETTERS = 200
"""The length of the longest reason that an error gives."""


def reason_of(
    least: Estimate, kernels: Estimate, library: float, total: Callable[[Seconds], float]
) -> str:
    """The reason for a part by itself: its bound may not win, or its kernels do not.

    `library` is the time of PyTorch's operators, and `total` that of the two sums of a cost.
    """
    bound, spent = total(least.seconds), total(kernels.seconds)
    if kernels.basis == "measured" and spent >= library:
        return slower(kernels.basis)
    if bound * least.error >= library:
        return too_long(bound, least.error, library)
    if spent >= library:
        return slower(kernels.basis)
    return with_error(CLOSE, kernels.error) if spent * kernels.error >= library else ELSEWHERE


def too_long(least: float, error: float, library: float) -> str:
    """The reason for kernels whose least time, with the error of predictions, may not win."""
    margin = f", times {error:.3g} for the error of predictions," if error > 1 else ","
    least_time = f"even the least time of kernels, {duration(least)}{margin}"
    return f"{least_time} is not below PyTorch's {duration(library)}"


def slower(basis: str, what: str = "kernels") -> str:
    """The reason for kernels whose time is longer, with the source of that time."""
    if basis == "measured":
        return f"{what} were measured to be slower"
    return f"{what} are predicted to be slower" if basis == "predicted" else f"{what} are slower"


def with_error(reason: str, error: float) -> str:
    """A reason with the error that it speaks of."""
    return f"{reason} (factor {error:.3g})"


def sentence(error: Exception) -> str:
    """The first line of an error, without its end if it is long."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if len(line) <= MOST_LETTERS else line[:MOST_LETTERS].rstrip() + " …"
