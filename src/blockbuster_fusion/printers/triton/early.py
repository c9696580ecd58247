"""The lines of kernels that start before the one before them has ended.

A program waits before anything else: no load and no store may come before that
(nest/passes/start_early.py).
"""

from blockbuster_fusion.nest.nest import Body, Early, For, Launchable, Load, Lookup

IMPORT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
WAIT = "gdc_wait()  # for the results of earlier kernels: this one may start before they end"
SIGNAL = "gdc_launch_dependents()  # the next kernel may start, too"


def first_lines(launched: Launchable) -> list[str]:
    """The lines with which each program of a launch begins."""
    match launched.early:
        case Early.NO:
            return []
        case Early.START:
            return [WAIT, SIGNAL]
        case Early.END:
            return [WAIT]


def signal_place(launched: Launchable, body: Body) -> int | None:
    """The statement of a body before which a program says that the next kernel may start.

    None if it does so in its first lines, or by its end, as one that computes blocks in turns.
    """
    if launched.early is not Early.END or any(kernel.programs for kernel in launched.kernels):
        return None
    loading = (at for at, s in enumerate(body) if isinstance(s, For | Load | Lookup))
    return max(loading, default=-1) + 1
