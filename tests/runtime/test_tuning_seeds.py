"""Seeds: which measurements of the package serve which machine, and how a seed is made."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blockbuster_fusion.errors import BadRecord
from blockbuster_fusion.machine.machine import Machine, Memory, known
from blockbuster_fusion.runtime import tuning_seeds
from blockbuster_fusion.runtime.generator import SOURCES, digest_of, generator_version
from blockbuster_fusion.runtime.tuning_records import NO_KERNELS, Key, Record, entries
from blockbuster_fusion.runtime.tuning_seeds import made_seed, seed_file, seed_for, seed_name
from blockbuster_fusion.schedule.config import Config

CPU = Machine(
    "a CPU",
    "cpu",
    2,
    (Memory("main", 1 << 33, 1e10, 3e10),),
    {"vector.float32": 1e11},
    launch=1e-6,
    step=0.0,
    instructions="AVX2",
)
GPU = known()["h200"]
MOST_BYTES = 300_000


def key(machine: Machine, digest: str = "d", **changes: object) -> Key:
    threads = machine.processors if machine.target == "cpu" else 1
    made = Key(digest, (("M", 64),), machine.name, threads, (("torch", "2.11"),))
    return replace(made, **changes)  # type: ignore[arg-type]


def record(seconds: float = 1.0, **config: object) -> Record:
    return Record(dict(config), seconds, seconds, seconds, 0.0, 1e-3, 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of seeds with one of a CPU and one of a GPU."""
    monkeypatch.setattr(tuning_seeds, "seed_folder", lambda: tmp_path)
    tuning_seeds.seeds.cache_clear()
    for machine in (CPU, GPU):
        made = made_seed([(key(machine), record(tile=machine.processors))], machine)
        (tmp_path / seed_file(seed_name(machine))).write_text(json.dumps(made))
    yield tmp_path
    tuning_seeds.seeds.cache_clear()


def test_a_cpu_starts_with_the_configuration_of_its_kind(folder: Path) -> None:
    other = replace(CPU, name="another CPU")
    found = seed_for(key(other, versions=(("torch", "2.13"),)), other)
    assert found is not None
    assert found.record.config == {"tile": 2}
    assert not found.counts, "the time is that of another CPU"
    assert not seed_for(key(CPU), CPU).counts, "a name does not tell all"


@pytest.mark.parametrize("changes", [{"instructions": "AVX-512"}, {"processors": 4}])
def test_other_kinds_of_cpus_have_their_own(folder: Path, changes: dict[str, object]) -> None:
    other = replace(CPU, **changes)  # type: ignore[arg-type]
    assert seed_for(key(other), other) is None


def test_the_time_of_the_same_gpu_counts(folder: Path) -> None:
    found = seed_for(key(GPU, versions=(("torch", "2.13"),)), GPU)
    assert found is not None
    assert found.counts
    with tuning_seeds.seeds_left_out():
        assert seed_for(key(GPU), GPU) is None
    assert seed_for(key(GPU, "another"), GPU) is None
    assert seed_for(key(GPU, sizes=(("M", 65),)), GPU) is None
    assert seed_for(key(known()["a100"]), known()["a100"]) is None


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_seed_outlives_its_generator(folder: Path, machine: Machine) -> None:
    """Its kernels count, and they have a digest of their own."""
    assert seed_for(key(machine, generator="another"), machine) is not None


def test_a_seed_is_made_of_the_best_and_of_what_was_there() -> None:
    first = made_seed([(key(CPU), record(tile=1)), (key(CPU, "e"), record(tile=2))], CPU)
    twice = replace(CPU, processors=4)
    second = made_seed([(key(CPU), record(tile=3)), (key(twice), record(tile=4))], CPU, first)
    records, libraries = entries("the seed", json.loads(json.dumps(second)))
    assert libraries == []
    assert {k.machine for k, _ in records} == {"CPU AVX2"}
    found = {(k.digest, k.threads): r.config["tile"] for k, r in records}
    assert found == {("d", 2): 3, ("e", 2): 2, ("d", 4): 4}
    assert second["about"] == "CPU AVX2: measured on a CPU"
    assert made_seed([], GPU, second)["records"] == []


@pytest.mark.parametrize(("seconds", "tile"), [(2.0, 1), (0.5, 2)])
def test_a_part_of_a_seed_is_no_slower_than_what_was_there(seconds: float, tile: int) -> None:
    """A case that is tuned now has a slow configuration first."""

    def measured(seconds: float, tile: int) -> Record:
        return replace(record(tile=tile), seconds=seconds, low=seconds, high=seconds)

    before = made_seed([(key(CPU), measured(1.0, 1))], CPU)
    new = [(key(CPU), measured(seconds, 2))]
    for is_part, wanted in ((True, tile), (False, 2)):
        made = made_seed(new, CPU, json.loads(json.dumps(before)), is_part=is_part)
        ((_, found),), _ = entries("the seed", json.loads(json.dumps(made)))
        assert found.config["tile"] == wanted


def test_a_damaged_seed_gets_a_sentence(folder: Path) -> None:
    (folder / "cpu-avx2.json").write_text("{")
    with pytest.raises(BadRecord, match=r"cpu-avx2.json: is no JSON"):
        seed_for(key(CPU), CPU)


def test_the_seeds_of_the_package() -> None:
    """Each file is named after its machine, is small, and has configurations that are valid."""
    files = [file for file in tuning_seeds.seed_folder().iterdir() if file.name.endswith(".json")]
    assert "cpu-avx2.json" in [file.name for file in files]
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert len(text) < MOST_BYTES
        records, libraries = entries(file.name, json.loads(text))
        assert libraries == [], "those depend on PyTorch's version"
        assert len(records) > 20
        for found, measured in records:
            assert seed_file(found.machine) == file.name
            assert measured.ok
            assert measured.source != NO_KERNELS
            Config.from_data(measured.config)


def test_the_version_of_the_generator_follows_its_sources(tmp_path: Path) -> None:
    assert digest_of(tmp_path) == "", "a package without sources"
    for name in SOURCES:
        file = tmp_path / name if name.endswith(".py") else tmp_path / name / "inner" / "one.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    before = digest_of(tmp_path)
    assert digest_of(tmp_path) == before
    (tmp_path / "elsewhere.py").write_text("2")
    (tmp_path / "nest" / "notes.txt").write_text("2")
    assert digest_of(tmp_path) == before
    (tmp_path / "nest" / "inner" / "one.py").write_text("2")
    assert digest_of(tmp_path) != before
    assert len(generator_version()) == len(before)
