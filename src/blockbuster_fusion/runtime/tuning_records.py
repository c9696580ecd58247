"""Measurements of kernels as data: what was measured, how fast and how exact it was.

A key or record that exists is valid: its texts can be printed, its numbers are in range, and its
configuration is plain JSON. In JSON, null stands for an infinite number.
"""

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from numbers import Integral, Real
from typing import Any

from blockbuster_fusion.errors import BadRecord
from blockbuster_fusion.runtime.generator import generator_version

LONGEST_TEXT, LONGEST_CONFIG = 1000, 100_000
LARGEST = 2**63 - 1
"""The largest whole number that SQLite stores."""

NO_KERNELS = "none"
"""Stands for the digest of a source where there is none."""

Pairs = tuple[tuple[str, Any], ...]


def now() -> str:
    """The present time in the form of `made`."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, slots=True)
class Key:
    """What is computed, for which sizes, where and by which software.

    Sizes and versions are sorted by name.
    """

    digest: str
    """The hash of what is computed."""
    sizes: tuple[tuple[str, int], ...]
    machine: str
    threads: int
    versions: tuple[tuple[str, str], ...]
    """The names and versions of PyTorch, Triton or the C compiler."""
    generator: str = field(default_factory=generator_version)
    """The version of the generator of kernels: measurements of another one are not used."""

    def __post_init__(self) -> None:
        sizes = [(name, whole(f"sizes.{name}", n)) for name, n in pairs("sizes", self.sizes)]
        _set(self, "digest", text("digest", self.digest))
        _set(self, "sizes", tuple(sizes))
        _set(self, "machine", text("machine", self.machine))
        _set(self, "threads", whole("threads", self.threads, least=1))
        _set(self, "versions", checked_versions(self.versions))
        _set(self, "generator", text("generator", self.generator))


@dataclass(frozen=True, slots=True)
class Record:
    """The measurement of one configuration of a kernel."""

    config: dict[str, Any]
    """Plain JSON data; tuples become lists."""
    seconds: float
    """The median; infinite for a configuration that cannot run."""
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""
    error: float
    """The error against float64; NaN becomes infinity."""
    bar: float
    """The largest error that is allowed."""
    rounds: int
    """The number of times that it was measured; 0 if other programs held up every call."""
    made: str = field(default_factory=now)
    """The time of the measurement, in ISO form and UTC."""
    source: str = NO_KERNELS
    """The digest of the kernels' source."""

    def __post_init__(self) -> None:
        _set(self, "config", json.loads(config_text(self.config)))
        for name in ("seconds", "low", "high", "bar"):
            _set(self, name, number(name, getattr(self, name)))
        _set(self, "error", number("error", self.error, nan=math.inf))
        _set(self, "rounds", whole("rounds", self.rounds))
        _set(self, "made", moment("made", self.made))
        _set(self, "source", text("source", self.source))
        if not self.low <= self.seconds <= self.high:
            found = f"{self.low}, {self.seconds} and {self.high}"
            problem = f"are {found}, but must be the lower quartile, the median and the upper one"
            raise BadRecord(place="low, seconds and high", problem=problem)

    @property
    def ok(self) -> bool:
        """True if the configuration runs, and its error is within the bar."""
        return self.error <= self.bar and self.error < math.inf and self.seconds < math.inf


@dataclass(frozen=True, slots=True)
class LibraryTime:
    """The seconds that a library takes for an operator, on the device and on the host."""

    operator: str
    machine: str
    threads: int
    versions: tuple[tuple[str, str], ...]
    seconds_device: float
    seconds_host: float
    made: str = field(default_factory=now)

    def __post_init__(self) -> None:
        _set(self, "operator", text("operator", self.operator))
        _set(self, "machine", text("machine", self.machine))
        _set(self, "threads", whole("threads", self.threads, least=1))
        _set(self, "versions", checked_versions(self.versions))
        for name in ("seconds_device", "seconds_host"):
            _set(self, name, number(name, getattr(self, name)))
        _set(self, "made", moment("made", self.made))


def _set(made: object, name: str, value: object) -> None:
    object.__setattr__(made, name, value)


# ------------------------------------------------------------------------ checks


def text(place: str, value: object) -> str:
    """A text that can be printed."""
    if isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable():
        return str(value)
    wanted = f"a text of 1 to {LONGEST_TEXT} characters that can be printed"
    raise _refused(place, value, wanted)


def whole(place: str, value: object, least: int = 0) -> int:
    """A whole number of Python or NumPy."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        found = int(value)
        if least <= found <= LARGEST:
            return found
    raise _refused(place, value, f"a whole number from {least} to 2^63 - 1")


def number(place: str, value: object, nan: float = -1.0) -> float:
    """A number of Python or NumPy that is not negative; it may be infinite."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:  # a whole number of hundreds of digits
            found = math.nan
        found = nan if math.isnan(found) else found
        if found >= 0:
            return found
    raise _refused(place, value, "a number that is not negative")


def moment(place: str, value: object) -> str:
    """A date or time in ISO form, as a text of fixed length in UTC: texts sort as times do."""
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
            return found.astimezone(UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError):
        pass
    raise _refused(place, value, "a date in ISO form, as 2026-01-31T12:00:00+00:00")


def pairs(place: str, value: object) -> Pairs:
    """Names with something each, sorted by name, each name once."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise _refused(place, value, "pairs of a name and a value")
    found: dict[str, Any] = {}
    for pair in value:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _refused(place, pair, "a pair of a name and a value")
        name = text(f"{place}, a name", pair[0])
        if name in found:
            raise BadRecord(place=place, problem=f"{name} is there twice; give each name once")
        found[name] = pair[1]
    return tuple(sorted(found.items()))


def checked_versions(value: object) -> tuple[tuple[str, str], ...]:
    """The names and versions of software, sorted by name."""
    found = pairs("versions", value)
    return tuple((name, text(f"versions.{name}", version)) for name, version in found)


def config_text(config: object) -> str:
    """The one text of a configuration: JSON with sorted names."""
    if not isinstance(config, dict):
        raise _refused("config", config, "a mapping of names to plain data")
    try:
        odd = _odd(config)
        made = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecord(place="config", problem=f"is no plain data: {error}") from None
    if odd is not None:
        problem = f"has {odd}; names are texts, and values are numbers, texts, lists and mappings"
        raise BadRecord(place="config", problem=problem)
    if len(made) > LONGEST_CONFIG:
        problem = f"has {len(made)} characters as JSON, more than {LONGEST_CONFIG}"
        raise BadRecord(place="config", problem=problem)
    return made


def _odd(data: object) -> str | None:
    """What JSON would store as something else, or None; json.dumps refuses the rest."""
    inner: Iterable[object] = ()
    if isinstance(data, dict):
        inner = data.values()
        for name in data:
            if not isinstance(name, str):
                return f"the name {_shown(name)}"
    elif isinstance(data, list | tuple):
        inner = data
    return next((found for value in inner if (found := _odd(value))), None)


def _refused(place: str, value: object, wanted: str) -> BadRecord:
    return BadRecord(place=place, problem=f"is {_shown(value)}, but must be {wanted}")


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # a number of thousands of digits
        return f"a large {type(value).__name__}"


# ------------------------------------------------------------------------ JSON

FORMAT = "blockbuster tuning 2"


def to_entry(*parts: Key | Record | LibraryTime) -> dict[str, Any]:
    """A measurement as plain data."""
    entry: dict[str, Any] = {}
    for part in parts:
        entry |= {one.name: getattr(part, one.name) for one in fields(part)}
    entry |= {name: dict(entry[name]) for name in ("sizes", "versions") if name in entry}
    return {name: None if value == math.inf else value for name, value in entry.items()}


def record_from(place: str, data: object) -> tuple[Key, Record]:
    """The key and the record of an entry."""
    entry = _entry(place, data, (Key, Record))
    try:
        return Key(**_part(Key, entry)), Record(**_part(Record, entry))
    except BadRecord as error:
        raise BadRecord(place=f"{place}, {error.place}", problem=error.problem) from None


def library_from(place: str, data: object) -> LibraryTime:
    """The time of a library from an entry."""
    entry = _entry(place, data, (LibraryTime,))
    try:
        return LibraryTime(**entry)
    except BadRecord as error:
        raise BadRecord(place=f"{place}, {error.place}", problem=error.problem) from None


def entries(place: str, data: object) -> tuple[list[tuple[Key, Record]], list[LibraryTime]]:
    """The measurements of a file, each of them checked."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadRecord(place=place, problem=f'it has no measurements of the format "{FORMAT}"')
    lists = {name: data.get(name, []) for name in ("records", "libraries")}
    for name, found in lists.items():
        if not isinstance(found, list):
            raise _refused(f"{place}, {name}", found, "a list")
    return (
        [record_from(f"{place}, records[{i}]", one) for i, one in enumerate(lists["records"])],
        [library_from(f"{place}, libraries[{i}]", one) for i, one in enumerate(lists["libraries"])],
    )


NUMBERS = ("seconds", "low", "high", "error", "bar", "seconds_device", "seconds_host")


def _entry(place: str, data: object, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The fields of an entry, with all names and no others."""
    if not isinstance(data, dict):
        raise _refused(place, data, "a mapping")
    wanted = [one.name for kind in kinds for one in fields(kind)]
    missing = [name for name in wanted if name not in data]
    if missing:
        raise BadRecord(place=place, problem=f"{missing[0]} is missing")
    unknown = [name for name in data if name not in wanted]
    if unknown:
        raise BadRecord(place=place, problem=f"{_shown(unknown[0])} is unknown")
    entry: dict[str, Any] = {name: data[name] for name in wanted}
    for name in wanted:
        if name in NUMBERS and entry[name] is None:
            entry[name] = math.inf
        if name in ("sizes", "versions"):
            if not isinstance(entry[name], dict):
                raise _refused(f"{place}, {name}", entry[name], "a mapping")
            entry[name] = tuple(entry[name].items())
    return entry


def _part(kind: type, entry: dict[str, Any]) -> dict[str, Any]:
    return {one.name: entry[one.name] for one in fields(kind)}
