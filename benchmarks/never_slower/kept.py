"""The file that keeps results, so that a run that was broken off goes on where it was."""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch

import blockbuster_fusion as bb
from blockbuster_fusion.tools.bench import processor, versions
from never_slower.case import Case
from never_slower.contenders import BEST
from never_slower.timing import LATE, Effort, Result

ATTEMPTS = 2
"""The number of times that a case is begun; one that always ends the process is given up."""


@cache
def source() -> str:
    """A digest of the package's code: its version alone is the same from day to day."""
    folder = Path(bb.__file__).parent
    made = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        made.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return made.hexdigest()[:12]


@cache
def all_versions() -> dict[str, str]:
    return versions() | {"blockbuster-fusion": bb.__version__, "source": source()}


def machine(device: str) -> str:
    """The processor, and the GPU if cases run on one."""
    made = f"{platform.machine()}, {processor()}"
    return f"{made}, {torch.cuda.get_device_name()}" if device == "cuda" else made


class Kept:
    """Results by case, device and number of threads; with no file they are in memory only."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        known = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
        self.results: list[Result] = known.get("results", [])
        self.begun: dict[str, int] = known.get("begun", {})
        """The number of times that a case was begun and has not ended."""

    def has(self, case: Case, effort: Effort) -> bool:
        """True if the case was measured with the same contenders, versions and machine."""
        wanted = _stamped({}, effort)
        threads = effort.threads if effort.device == "cpu" else None
        for result in self.results:
            same = (case.name, effort.device, threads, effort.clock) == _key(result)
            if same and all(result.get(name) == wanted[name] for name in ("machine", "versions")):
                has_all = set(effort.names) - {BEST} <= set(result["contenders"])
                return has_all and not _was_late(result, effort.limit)
        return False

    def begin(self, case: Case, device: str) -> bool:
        """Notes that a case begins; False if it has ended the process too often."""
        name = f"{device}: {case.name}"
        if self.begun.get(name, 0) >= ATTEMPTS:
            return False
        self.begun[name] = self.begun.get(name, 0) + 1
        self.write()
        return True

    def forget(self, case: Case, device: str) -> None:
        """Notes that a case was broken off by a person."""
        self.begun.pop(f"{device}: {case.name}", None)
        self.write()

    def add(self, result: Result, effort: Effort) -> Result:
        """Keeps a result in the place of an older one."""
        made = _stamped(result, effort)
        self.results = [r for r in self.results if _key(r) != _key(made)] + [made]
        self.begun.pop(f"{effort.device}: {result['case']}", None)
        self.write()
        return made

    def write(self) -> None:
        """Writes another file and puts it in the place of the old one."""
        if self.file is None:
            return
        text = json.dumps({"begun": self.begun, "results": self.results}, indent=1)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_name(f"{self.file.name}.{os.getpid()}.new")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(self.file)


def _key(result: Result) -> tuple[Any, ...]:
    return result["case"], result["device"], result["threads"], result["clock"]


def _was_late(result: Result, limit: float) -> bool:
    """True if a case had less time than now, and did not get far enough."""
    reasons = [own.get("failed", "") for own in result["contenders"].values()]
    return result["limit"] < limit and any(reason.startswith(LATE) for reason in reasons)


def _stamped(result: Result, effort: Effort) -> Result:
    return {
        **result,
        "date": str(date.today()),
        "machine": machine(effort.device),
        "versions": all_versions(),
    }


def ended_the_process(case: Case, effort: Effort) -> Result:
    """The result of a case that is given up."""
    reason = f"ended the process {ATTEMPTS} times"
    return {
        "case": case.name,
        "family": case.family,
        "device": effort.device,
        "dtype": str(case.dtype).removeprefix("torch."),
        "threads": effort.threads if effort.device == "cpu" else None,
        "clock": effort.clock,
        "rounds": 0,
        "seconds": 0.0,
        "limit": effort.limit,
        "contenders": {name: {"failed": reason} for name in effort.names},
        "ratios": {},
    }


def merged(files: Iterable[Path], cases: Sequence[Case], device: str) -> list[Result]:
    """The results of some files, in the order of the cases; of equal ones the last counts."""
    found: dict[tuple[Any, ...], Result] = {}
    for file in files:
        found |= {_key(result): result for result in Kept(file).results}
    places = {case.name: place for place, case in enumerate(cases)}
    chosen = [r for r in found.values() if r["device"] == device and r["case"] in places]
    return sorted(chosen, key=lambda r: (r["threads"] or 0, places[r["case"]]))
