"""The fuzzer of faults: one case of each kind, and a planted defect that it finds."""

import os
from collections import Counter
from pathlib import Path

import pytest

from blockbuster_fusion.runtime import disk_cache
from blockbuster_fusion.runtime.c import library
from fuzz.faults import KINDS, Case, Faults
from fuzz.harness import fuzz

LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "1000"))


@pytest.mark.parametrize(("kind", "seed"), [*((kind, 5) for kind in KINDS), ("files", 15)])
def test_a_fault_of_each_kind(kind: str, seed: int) -> None:
    failure = Faults().run(Case(kind, seed))
    assert failure is None, failure.detail


@pytest.mark.long
def test_many_faults() -> None:
    summary = fuzz(Faults(), range(LONG), jobs=os.cpu_count() or 1, seconds=60, progress=True)
    assert summary.ok, summary


def test_a_seed_gives_one_case() -> None:
    cases = [Faults().generate(seed) for seed in range(300)]
    assert cases == [Faults().generate(seed) for seed in range(300)]
    assert Counter(case.kind for case in cases).keys() == KINDS.keys()


def test_entries_that_are_not_looked_at_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the hash, damaged libraries are loaded: wrong answers or crashes."""

    def trusting(entry: Path) -> disk_cache.CacheEntry | None:
        files = [*entry.glob("*")]
        return disk_cache.CacheEntry(files[0].read_bytes(), files[0]) if files else None

    monkeypatch.setattr(disk_cache, "_read", trusting)
    monkeypatch.setattr(library, "is_whole", lambda content: True)
    assert not fuzz(_Damaged(), range(12)).ok


class _Damaged(Faults):
    def generate(self, seed: int) -> Case:
        return Case("damaged", seed)
