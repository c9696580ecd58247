"""Floors: the least time of one launch that runs a part: for its arrays and its products.

A reduction, or another product, that reads a product with a weight needs whole rows of it. One
program then holds these rows, and reads the whole weight: there are no more programs than rows, and
the weight is read again for each block of rows that fits into a processor's fastest memories.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.schedule.gpu import gpu_floor
from blockbuster_fusion.select.operators import Kind, Operator
from blockbuster_fusion.select.order import bits, members
from blockbuster_fusion.select.units import Units


@dataclass(frozen=True, slots=True)
class _Result:
    """An array that a unit makes."""

    bytes: int
    readers: int
    """The units that read it."""
    is_kept: bool
    """True if it is stored in any case: a result of the model."""


@dataclass(frozen=True)
class Floors:
    """The least times of the parts of a model on a machine."""

    units: Units
    machine: Machine

    @cached_property
    def _makers(self) -> dict[str, int]:
        """The unit that makes each array."""
        operators = self.units.operators
        return {operators[i].name: n for n, own in enumerate(self.units.members) for i in own}

    @cached_property
    def _reads(self) -> list[list[tuple[str, int, int]]]:
        """For each unit, the arrays that it reads: their names, makers (or -1) and bytes."""
        found = []
        for n, own in enumerate(self.units.members):
            reads: dict[str, int] = {}
            for read in (r for i in own for r in self.units.operators[i].reads):
                if self._makers.get(read.array) != n:
                    reads[read.array] = max(reads.get(read.array, 0), read.bytes)
            found.append([(a, self._makers.get(a, -1), size) for a, size in reads.items()])
        return found

    @cached_property
    def _results(self) -> list[list[_Result]]:
        users: dict[int, int] = {}
        operators = self.units.operators
        for i, op in enumerate(operators):
            for v in op.operands:
                users[v] = users.get(v, 0) | 1 << self.units.unit_of[i]
        return [
            [
                _Result(operators[i].bytes, users.get(i, 0) & ~(1 << n), operators[i].is_output)
                for i in own
                if users.get(i, 0) & ~(1 << n) or operators[i].is_output or i not in users
            ]
            for n, own in enumerate(self.units.members)
        ]

    @cached_property
    def _computing(self) -> list[float]:
        """For each unit, the seconds of its products."""
        return [
            sum(
                self.units.operators[i].flops
                / self.machine.rate(self.units.operators[i].dtype, matrix=True)
                for i in own
                if self.units.operators[i].flops
            )
            for own in self.units.members
        ]

    def moved(self, part: int) -> int:
        """The bytes that a part reads and writes: each array once."""
        read: dict[str, int] = {}
        written = 0
        for n in members(part):
            for array, maker, size in self._reads[n]:
                if maker < 0 or not part >> maker & 1:
                    read[array] = max(read.get(array, 0), size)
            for result in self._results[n]:
                if result.is_kept or not result.readers or result.readers & ~part:
                    written += result.bytes
        return sum(read.values()) + written

    def has_product(self, part: int) -> bool:
        return bool(part & self._products)

    def is_chained(self, part: int) -> bool:
        """True if a product of a part reads what another product of it, or a reduction, makes."""
        gathering = part & self._gathering
        before = (self.units.order.before[n] for n in members(part & self._products))
        return any(own & gathering for own in before)

    @cached_property
    def _products(self) -> int:
        """The units with products."""
        return self._units_with((Kind.CONTRACTION,))

    @cached_property
    def _gathering(self) -> int:
        """The units that need whole rows of what they read."""
        return self._units_with((Kind.CONTRACTION, Kind.REDUCTION))

    def _units_with(self, kinds: tuple[Kind, ...]) -> int:
        operators = self.units.operators
        return bits(
            n
            for n, own in enumerate(self.units.members)
            if any(operators[i].kind in kinds for i in own)
        )

    def whole_rows(self, part: int) -> list[Operator]:
        """The products with weights of a part of which it needs whole rows."""
        found = []
        for n in members(part & self._products):
            op = self.units.operators[self.units.members[n][0]]
            if op.has_weight and op.width and self.units.order.after[n] & part & self._gathering:
                found.append(op)
        return found

    def _rereading(self, op: Operator) -> float:
        """The least seconds of a product in programs that hold whole rows of its result."""
        machine, rows = self.machine, op.rows
        weight = max((r.bytes for r in op.reads), default=0)
        size = sum(m.size for m in machine.memories[:-1] if not m.shared) or math.inf
        block = max(1, min(rows, int(size / (4 * op.width))))
        programs = min(machine.processors, rows)
        # all programs read the same weight: it comes from the memory that holds it
        memory = machine.memory_for(weight)
        reading = weight * math.ceil(rows / block) / min(memory.total, memory.each * programs)
        return max(reading, op.flops / machine.rate(op.dtype, matrix=True, processors=programs))

    def of(self, part: int) -> Seconds:
        """The least time of the kernels of a part."""
        size, machine = self.moved(part), self.machine
        computing = sum(self._computing[n] for n in members(part))
        whole = sum(map(self._rereading, self.whole_rows(part)))
        if machine.target == "cuda":
            moving = gpu_floor(size, machine, has_products=self.has_product(part))
            step = machine.step - machine.early  # kernels may start early
            return Seconds(max(moving, computing, whole) + step, machine.launch)
        moving = size / machine.memory_for(size).total
        return Seconds(max(moving, computing, whole) + machine.step + machine.launch)
