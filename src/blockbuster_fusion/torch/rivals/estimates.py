"""Estimates the times of the kernels of parts: measured before, measured now, or predicted."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch.fx import Node

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.runtime.tuning_database import Record
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.search_job import Forecast, forecast
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.reasons import sentence
from blockbuster_fusion.torch.rivals.tuning import Subject, Tuner, subject_of
from blockbuster_fusion.torch.rivals.weighing import MEASURED
from blockbuster_fusion.torch.to_array_program import PartProgram


class Estimates:
    """The times of the kernels of parts on a machine."""

    def __init__(
        self, parts: PartCompiler, machine: Machine, tuner: Tuner, known: dict[object, Estimate]
    ) -> None:
        """`known` are the estimates of other graphs of the model; new ones come into it."""
        self.parts, self.machine, self.tuner, self.known = parts, machine, tuner, known
        self.kinds: dict[ArrayProgram, str] = {}
        """The digests of programs."""

    def of(self, nodes: Sequence[Node]) -> Estimate:
        """The time of the kernels of a part: measured before, or predicted."""
        key = self.key(nodes)
        if key not in self.known:
            part, target = self.parts.program(nodes), self.parts.options.target_of(nodes)
            made = self.parts.forecast(part, target)
            self.known[key] = self._chosen(part, target) if made is None else _predicted(made)
        return self.known[key]

    def _chosen(self, part: PartProgram, target: str) -> Estimate:
        """The time of the first choice for a part: measured before, or predicted."""
        choice = self.parts.choices(part, target)[0]
        kept = self._kept(part, target, choice)
        return kept or _predicted(forecast(choice, self._sizes(part), self.machine))

    @property
    def has_kept(self) -> bool:
        """True if a time that is known is from the user's database."""
        return any(made.is_kept for made in self.known.values())

    def noted(self, nodes: Sequence[Node]) -> Estimate | None:
        """The time of the kernels of a part, if it was asked for before."""
        return self.known.get(self.key(nodes))

    def timed(self, nodes: Sequence[Node]) -> Estimate:
        """The measured time of the best configuration of a part, which becomes its choice."""
        found = self.tuner.best(self.subject(nodes))
        if found is None:  # no configuration is exact and runs
            made = Estimate(Seconds(math.inf), "measured", obstacle="none is exact enough")
        else:
            self.parts.prefer(nodes, found[0])
            made = self.measured(*found)
        self.known[self.key(nodes)] = made
        return made

    def note(self, nodes: Sequence[Node], made: Estimate) -> None:
        """Keeps the measured time of a part."""
        self.known[self.key(nodes)] = made

    def looked_for(self, nodes: Sequence[Node], least: Estimate) -> Estimate:
        """The time of the best kernels of a part that has lost; of one without any, the reason."""
        try:
            return self.of(nodes)
        except Exception as error:  # whatever it is: PyTorch runs the part, and this is told
            return replace(least, obstacle=sentence(error))

    def subject(self, nodes: Sequence[Node]) -> Subject:
        """A part as a program to be tuned, with random inputs."""
        return subject_of(self.parts, nodes, self.machine)

    def kind(self, nodes: Sequence[Node]) -> str:
        """The kind of a part: parts of one kind have the same program, as layers of a model do."""
        program = self.parts.program(nodes).expressed.program
        if program not in self.kinds:
            self.kinds[program] = lower(program).digest
        return self.kinds[program]

    def measured(self, choice: Choice, record: Record) -> Estimate:
        """The measured time of a choice."""
        host = self.machine.launch * len(choice.scheduled()[0].launches)
        own = Seconds(record.seconds, 0.0 if self.machine.target == "cpu" else host)
        return Estimate(own, "measured", str(choice.config), MEASURED)

    def key(self, nodes: Sequence[Node]) -> object:
        """All that the time of a part depends on, as it is now."""
        part = self.parts.program(nodes)
        return (self.parts.key(part, self.parts.options.target_of(nodes)), self._sizes(part))

    def _sizes(self, part: PartProgram) -> Sizes:
        """The lengths of a part's axes in the captured call."""
        length = self.parts.expected.captured
        return tuple((axis, length(size)) for axis, size in part.expressed.sizes)

    def _kept(self, part: PartProgram, target: str, choice: Choice) -> Estimate | None:
        """The time that tuning has measured before, if it has."""
        record = self.parts.record(part, target)
        if record is None or str(Config.from_data(record.config)) != str(choice.config):
            return None
        is_kept = self.parts.is_measured_here(part, target)
        return replace(self.measured(choice, record), is_kept=is_kept)


def _predicted(made: Forecast) -> Estimate:
    return Estimate(made.seconds, "predicted", str(made.config), made.error)
