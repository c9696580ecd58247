"""A configuration: the snapshot, the tile of each dim, and the schedule.

It is data: it prints, compares, and can be given to `compile`. It is a point of the schedule space
(schedule/space.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blockbuster_fusion.errors import BadConfig
from blockbuster_fusion.schedule.schedule import FLAGS, LAUNCH, Grid, Schedule

GRIDS: tuple[Grid, ...] = ("outer", "all", "one")


@dataclass(frozen=True)
class Config:
    """A point of the schedule space."""

    snapshot: int = 0
    tiles: Mapping[str, int] = field(default_factory=dict)
    """The tile of each dim, by its label."""
    schedule: Schedule = field(default_factory=Schedule)

    def data(self) -> dict[str, Any]:
        """The configuration as plain data."""
        made: dict[str, Any] = {"snapshot": self.snapshot, "tiles": dict(self.tiles)}
        made["grid"] = self.schedule.grid
        if self.schedule.order:
            made["order"] = list(self.schedule.order)
        if self.schedule.split:
            made |= {"split": dict(self.schedule.split), "atomic": self.schedule.atomic}
        made |= {name: True for name in FLAGS if getattr(self.schedule, name)}
        return made | self.launch

    @property
    def launch(self) -> dict[str, int]:
        """The options of launches that are not left to the rule of thumb."""
        given = {name: getattr(self.schedule, name) for name in LAUNCH}
        return {name: number for name, number in given.items() if number is not None}

    @classmethod
    def from_data(cls, given: Mapping[str, Any]) -> "Config":
        """The configuration that some data stands for, or BadConfig."""
        if not isinstance(given, Mapping):
            raise BadConfig(name="a configuration", problem=f"{given!r} is no mapping")
        known = {"snapshot", "tiles", "grid", "order", "split", "atomic", *FLAGS, *LAUNCH}
        for name in given:
            if name not in known:
                raise BadConfig(name=name, problem=f"unknown; known are {', '.join(sorted(known))}")
        tiles, split = given.get("tiles", {}), given.get("split", {})
        for what, numbers in (("tiles", tiles), ("split", split)):
            if not isinstance(numbers, Mapping) or not all(_is_count(n) for n in numbers.values()):
                raise BadConfig(name=what, problem=f"{numbers!r} is no mapping to whole numbers")
        grid, snapshot = given.get("grid", "all"), given.get("snapshot", 0)
        if grid not in GRIDS:
            raise BadConfig(name="grid", problem=f"{grid!r}; known are {', '.join(GRIDS)}")
        if type(snapshot) is not int or snapshot < 0:
            raise BadConfig(name="snapshot", problem=f"{snapshot!r} is no number from 0 on")
        launch = {name: given[name] for name in LAUNCH if given.get(name) is not None}
        order = given.get("order")
        schedule = Schedule(
            grid=grid,
            order=() if order is None else order,
            split=dict(split),
            atomic=bool(given.get("atomic", False)),
            **{name: given[name] for name in FLAGS if name in given},
            **launch,
        )
        return cls(snapshot, dict(tiles), schedule)

    def __str__(self) -> str:
        tiles = ", ".join(f"{name}={tile}" for name, tile in self.tiles.items()) or "none"
        words = [f"snapshot {self.snapshot + 1}", f"tiles {tiles}", f"{self.schedule.grid} grid"]
        words += [f"order {', '.join(self.schedule.order)}"] * bool(self.schedule.order)
        if self.schedule.split:
            words.append("split " + ", ".join(f"{a}/{n}" for a, n in self.schedule.split.items()))
            words += ["atomic"] * self.schedule.atomic
        words += ["prologue apart"] * self.schedule.apart
        words += ["operands padded"] * self.schedule.padded
        words += ["mirrored"] * self.schedule.mirrored
        words += ["products transposed"] * self.schedule.transposed
        words += ["operands described"] * self.schedule.described
        words += ["products joined"] * self.schedule.joined
        words += ["launched together"] * self.schedule.together
        words += ["launched early"] * self.schedule.early
        words += [f"{name} {number}" for name, number in self.launch.items()]
        return "; ".join(words)


def _is_count(number: object) -> bool:
    return type(number) is int and number > 0
