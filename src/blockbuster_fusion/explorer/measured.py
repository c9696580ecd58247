"""Times of snapshots on this CPU, measured side by side."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import executable_of
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.tools.bench import inputs_for, interleaved

SECONDS = 0.5
"""The seconds that each program is run."""


def measured(
    program: ArrayProgram, lengths: Mapping[str, int], choices: Sequence[Choice]
) -> list[float | None]:
    """The median time of each choice, in seconds; None for one that has no kernels."""
    made = [_compiled(choice) for choice in choices]
    arrays = inputs_for(program, lengths).values()
    runs = {str(at): partial(run, *arrays) for at, run in enumerate(made) if run is not None}
    times = interleaved(runs, lambda: None, SECONDS) if runs else {}
    return [median(times[str(at)]) if str(at) in times else None for at in range(len(made))]


def _compiled(choice: Choice) -> Executable | None:
    try:
        return executable_of([choice])
    except BlockbusterError:
        return None
