"""The reasons in words why PyTorch's operators run a part for which there might be kernels."""

LEAST = "even the least time that kernels could take is not short enough"
SLOWER = "kernels are slower"
CLOSE = "kernels may be faster, but by less than the error of their time"
WHOLE = "kernels are slower in the model as a whole"
CALL = "all kernels of the model together gain less than a call of the plan costs"
LATER = "kernels are slower for sizes of later calls"
MOST_LETTERS = 200
"""The length of the longest reason that an error gives."""


def reason_of(*, may_win: bool, is_slower: bool) -> str:
    """The reason for a part by itself: its bound may not win, or its kernels do not."""
    if not may_win:
        return LEAST
    return SLOWER if is_slower else CLOSE


def sentence(error: Exception) -> str:
    """The first line of an error, without its end if it is long."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if len(line) <= MOST_LETTERS else line[:MOST_LETTERS].rstrip() + " …"
