"""A machine: its processors, its memories from the fastest to the largest, and its rates.

A machine is data: it is read from a TOML or JSON file, printed, and compared. All rates are those
that good code reaches, not those of a data sheet.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from blockbuster_fusion.errors import BadMachine
from blockbuster_fusion.machine.link import Link

TARGETS = ("cpu", "cuda")
UNITS = ("vector", "matrix")
"""Units that compute: vector registers or CUDA cores, and units for products of matrices."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One tier of memory."""

    name: str
    size: int
    """Bytes: of one processor, or of all if it is shared."""
    each: float
    """Bytes per second for one processor, when the others are idle."""
    total: float
    """Bytes per second for all processors together."""
    shared: bool = True
    """True if all processors use the same memory."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that runs kernels."""

    name: str
    target: str
    processors: int
    """Cores, or streaming multiprocessors."""
    memories: tuple[Memory, ...]
    """The tiers: the fastest first, main memory last."""
    rates: Mapping[str, float]
    """Operations per second of one processor, by unit and dtype: `vector.float32`."""
    launch: float
    """Seconds of the host for one kernel."""
    step: float
    """Seconds of the device between two kernels that are launched together."""
    _: KW_ONLY
    early: float = 0.0
    """Seconds of `step` that a GPU saves if a kernel starts before the one before it has ended. It
    is 0 for those without such launches."""
    wake: float = 0.0
    """Seconds to start all processors on one kernel, and to wait for them."""
    programs: int = 1
    """Programs per processor that run at a time when it is full."""
    latency: float = 0.0
    """Seconds of a step of a loop that waits for memory, however little it loads."""
    instructions: str = ""
    """The vector instructions of a CPU, as AVX2 or AVX-512; those of a GPU, as sm_90."""
    link: Link | None = None
    """The link to the other ranks of a group, if it is known."""
    source: str = field(default="", compare=False)
    """The origin of the figures."""

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise BadMachine(name=self.name or "a machine", problem=problem)

    @property
    def main(self) -> Memory:
        """The memory that holds the arrays."""
        return self.memories[-1]

    @property
    def full(self) -> int:
        """The number of programs that fills the machine."""
        return self.processors * self.programs

    def rate(self, dtype: str, *, matrix: bool = False, processors: int | None = None) -> float:
        """Operations per second with numbers of a dtype; float32's rate for one that is unknown."""
        units = ("matrix", "vector") if matrix else ("vector",)
        keys = [f"{unit}.{kind}" for kind in (dtype, "float32") for unit in units]
        own = next(self.rates[key] for key in keys if key in self.rates)
        return own * (self.processors if processors is None else min(processors, self.processors))

    def memory_for(self, size: float) -> Memory:
        """The fastest memory that holds some number of bytes, spread over all processors."""
        for memory in self.memories:
            room = memory.size if memory.shared else memory.size * self.processors
            if size <= room:
                return memory
        return self.main

    def data(self) -> dict[str, Any]:
        """The machine as plain data, which `from_mapping` reads."""
        return asdict(self)

    def to_json(self) -> str:
        """The machine as the text of a file that `read` reads."""
        return json.dumps(self.data(), indent=2) + "\n"


def _problem(machine: Machine) -> str:
    """The first fault of a machine, or an empty text."""
    if not isinstance(machine.name, str) or not machine.name.isprintable():
        return f"its name is {machine.name!r}, but must be a text that can be printed"
    if not isinstance(machine.instructions, str) or not _is_plain(machine.instructions):
        return f"its instructions are {machine.instructions!r}; give a name as AVX2 or sm_90"
    if machine.target not in TARGETS:
        return f"its target is {machine.target!r}; known are {', '.join(TARGETS)}"
    if not machine.memories:
        return "it has no memory"
    positive: dict[str, float] = {"processors": machine.processors, "programs": machine.programs}
    for memory in machine.memories:
        positive |= {f"{memory.name}.{key}": getattr(memory, key) for key in ("size", "each")}
        positive[f"{memory.name}.total"] = memory.total
    positive |= {f"rates.{key}": rate for key, rate in machine.rates.items()}
    if machine.link is not None:
        positive |= {"link.rate": machine.link.rate, "link.latency": machine.link.latency}
    for key, number in positive.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"{key} is {number!r}, but must be a number"
        if not 0 < number < float("inf"):
            return f"{key} is {number}, but must be positive and finite"
    for key in ("launch", "step", "early", "wake", "latency"):
        number = getattr(machine, key)
        if not isinstance(number, int | float) or not 0 <= number < float("inf"):
            return f"{key} is {number!r}, but must be a number of seconds, not negative"
    if machine.early > machine.step:
        return f"early is {machine.early}, but must be a part of step, {machine.step}"
    for key in machine.rates:
        if key.partition(".")[0] not in UNITS or not key.partition(".")[2]:
            return f"the rate {key!r} has no unit and dtype, as `vector.float32` has"
    return "" if "vector.float32" in machine.rates else "it has no rate `vector.float32`"


def _is_plain(text: str) -> bool:
    """True for ASCII letters, digits, hyphens and underscores: a part of a file's name."""
    return not text or (text.isascii() and text.replace("-", "").replace("_", "").isalnum())


def from_mapping(data: Mapping[str, Any], source: str) -> Machine:
    """A machine from the contents of a file."""
    try:
        memories = tuple(Memory(**memory) for memory in data["memories"])
        own = ("memories", "rates", "link")
        rest = {key: value for key, value in data.items() if key not in own}
        link = None if data.get("link") is None else Link(**data["link"])
        rates = {key: float(rate) for key, rate in _flat(data["rates"])}
        origin = str(data.get("source") or source)
        made = {"memories": memories, "rates": rates, "link": link, "source": origin}
        return Machine(**{**rest, **made})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        said = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise BadMachine(name=source, problem=said) from error


def _flat(rates: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Rates by unit and dtype; TOML has them in a table per unit."""
    found: list[tuple[str, Any]] = []
    for key, value in rates.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        found += [(f"{key}.{dtype}", rate) for dtype, rate in inner] or [(key, value)]
    return found


def read(path: Path) -> Machine:
    """A machine from a TOML or JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise BadMachine(name=str(path), problem=str(error)) from error
    if not isinstance(data, dict):
        raise BadMachine(name=str(path), problem="it is not a table of names and values")
    return from_mapping(data, str(path))


def known() -> dict[str, Machine]:
    """The machines that come with the package, by the names of their files."""
    files = resources.files("blockbuster_fusion.machine")
    found = {}
    for file in sorted(files.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            data = tomllib.loads(file.read_text(encoding="utf-8"))
            found[file.name.removesuffix(".toml")] = from_mapping(data, file.name)
    return found
