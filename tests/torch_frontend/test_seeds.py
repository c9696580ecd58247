"""Seeds in models: own measurements first, configurations of other CPUs without their times."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.runtime import tuning_database, tuning_seeds
from blockbuster_fusion.runtime.c import probe
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tuning_database import Key, Record, TuningDatabase
from blockbuster_fusion.runtime.tuning_records import NO_KERNELS, entries
from blockbuster_fusion.runtime.tuning_seeds import Seed, made_seed, seed_file, seed_name
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.search_job import Forecast
from blockbuster_fusion.source_digest import source_digest
from blockbuster_fusion.torch import seed, seed_cases, tuned
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.rivals import library, tuning
from helpers.compilations import forget_parts

TILE = 4


def model(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).softmax(-1)


@pytest.fixture(autouse=True)
def _measures_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of the machine are rough: they are not judged here."""
    monkeypatch.setattr(probe, "SECONDS", 1e-3)
    monkeypatch.setattr(probe, "RUNS", 2)
    monkeypatch.setattr(probe, "CALLS", 8)


class Seeded:
    """A database without measurements, and a folder of seeds; what is asked for is noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.own = TuningDatabase(folder / "tuning.sqlite3")
        self.asked: list[Key] = []
        for module in (tuned, tuning, library):
            monkeypatch.setattr(module, "database", lambda: self.own)
        monkeypatch.setattr(tuning_seeds, "seed_folder", lambda: folder)
        monkeypatch.setattr(tuned, "uses_seeds", lambda: True)
        monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e3))
        found, known = tuned.seed_for, tuned.known_seed

        def noted(key: Key, machine: Any) -> Seed | None:
            self.asked.append(key)
            return found(key, machine)

        def requested(request: Request, *given: Any) -> Seed | None:
            self.request = request
            return known(request, *given)

        monkeypatch.setattr(tuned, "seed_for", noted)
        monkeypatch.setattr(tuned, "known_seed", requested)
        self.explained()
        self.key = self.asked[0]

    def explained(self) -> Any:
        """The explanation of the model in a new process."""
        torch._dynamo.reset()
        tuning_seeds.seeds.cache_clear()
        forget_parts(self.monkeypatch)
        self.monkeypatch.setattr(tuned, "_SOURCES", RecentlyUsed(8))
        return bb.explain(model, torch.randn(64, 150), options={"library": "auto"})

    def tiles(self) -> set[int]:
        """The tiles that the kernels of the model run with."""
        kernels = self.explained().kernels
        return {tile for k in kernels for tile in k.fused.executable.tiles.values()}

    def put_seed(self, config: dict[str, Any], source: str | None = None) -> None:
        """Writes a seed of this kind of CPUs, with one configuration of the model's kernel.

        It is of the kernels that are made now, unless a source is given.
        """
        machine = replace(machine_for("cpu"), name="another CPU")
        measured = record(config, 1e-9)
        measured = replace(measured, source=source or tuned._source(self.request, measured))
        made = made_seed([(self.key, measured)], machine)
        (self.folder / seed_file(seed_name(machine))).write_text(json.dumps(made))


def record(config: dict[str, Any], seconds: float) -> Record:
    return Record(config, seconds, seconds, seconds, 0.0, 1e-3, 1)


def config(tile: int) -> dict[str, Any]:
    return {"snapshot": 0, "tiles": {"B.0": tile}, "grid": "outer"}


@pytest.fixture
def seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seeded]:
    made = Seeded(tmp_path, monkeypatch)
    yield made
    made.own.close()
    tuning_seeds.seeds.cache_clear()


def chosen(seeded: Seeded) -> int:
    """A tile that is plausible and not the usual one."""
    return next(tile for tile in (TILE, 2 * TILE) if tile not in seeded.tiles())


def test_a_seed_gives_the_configuration_and_no_time(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = chosen(seeded)
    seeded.put_seed(config(tile))
    assert tile in seeded.tiles()
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e-6))
    monkeypatch.setattr("blockbuster_fusion.torch.rivals.choose.Chooser.at_least", cheap)
    found = [choice for choice in seeded.explained().library if f"B.0={tile};" in choice.config]
    choice = found[0]
    assert choice.basis == "predicted"
    assert choice.kernels.total() > 1e-7, "not the nanosecond of the seed"


def cheap(chooser: Any, nodes: Any) -> Any:
    from blockbuster_fusion.torch.rivals.choose import Estimate

    return Estimate(Seconds(0.0), "at least")


def test_own_measurements_come_first(seeded: Seeded) -> None:
    tile = chosen(seeded)
    seeded.put_seed(config(tile))
    seeded.own.put(seeded.key, record(config(32), 1e-3))
    assert 32 in seeded.tiles()


def test_seeds_are_never_copied(seeded: Seeded) -> None:
    seeded.put_seed(config(chosen(seeded)))
    seeded.explained()
    assert seeded.own.keys() == []


@pytest.mark.parametrize(
    "bad", [{"tiles": {"Q.7": 4}}, {"snapshot": 99}, {"tile": 3}, {"snapshot": -1}]
)
def test_a_seed_that_does_not_fit_is_left_out(seeded: Seeded, bad: dict[str, Any]) -> None:
    usual = seeded.tiles()
    seeded.put_seed({**config(TILE), **bad})
    assert seeded.tiles() == usual


def test_a_seed_of_other_kernels_is_left_out(seeded: Seeded) -> None:
    """An old configuration had three kernels for a norm that is one now."""
    usual, tile = seeded.tiles(), chosen(seeded)
    seeded.put_seed(config(tile), source="that of another generator")
    assert seeded.tiles() == usual


def test_a_seed_that_seems_slow_is_left_out(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, tile = seeded.tiles(), chosen(seeded)
    seeded.put_seed(config(tile))
    real = tuned.forecast

    def slow(choice: Any, *given: Any) -> Forecast:
        made = real(choice, *given)
        is_seed = tile in choice.tiles.values()
        return replace(made, seconds=Seconds(100.0)) if is_seed else made

    monkeypatch.setattr(tuned, "forecast", slow)
    assert seeded.tiles() == usual


def test_no_seeds_where_measurements_are_off(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded.put_seed(config(chosen(seeded)))
    seeded.asked.clear()
    monkeypatch.setattr(tuned, "uses_seeds", tuning_database.uses_seeds)
    monkeypatch.setenv(tuning_database.VARIABLE, "OFF")
    seeded.explained()
    assert seeded.asked == []


def test_names_of_arrays_do_not_matter_and_names_of_axes_do() -> None:
    machine = machine_for("cpu")

    def key(axes: str, **names: str) -> Key:
        program = bb.trace(lambda **arrays: bb.ops.exp(next(iter(arrays.values()))), **names)
        arrays = [a.name for a in (*program.inputs, *program.outputs)]
        storage = dict.fromkeys(arrays, program.inputs[0].type.dtype)
        return tuned.tuning_key(program, storage, (), machine)

    assert key("M N", x="M:4 N:5") == key("M N", y="M:4 N:5")
    assert key("M N", x="M:4 N:5") != key("N M", x="N:4 M:5"), "tiles are named after axes"


# ------------------------------------------------------------------------ the command


def test_a_seed_is_made_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = (("softmax", model, "T D"), ("sums", lambda x: x.sum(-1), "T D"))
    monkeypatch.setattr(seed_cases, "FUNCTIONS", functions)
    monkeypatch.setattr(seed_cases, "MODELS", ({"D": 150},))
    monkeypatch.setattr(seed_cases, "TOKENS", {"cpu": (64,), "cuda": (64,)})
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e3))
    monkeypatch.setattr(seed, "GAIN", 0.0)  # the usual choice, too
    file = tmp_path / "cpu.json"
    forget_parts(monkeypatch)
    tried: list[Choice] = []
    measured = tuning._Trial.measured

    def noted(trial: Any, choice: Choice, config: Config) -> Record:
        tried.extend(choose(replace(request_of(trial.subject), config=config)))
        return measured(trial, choice, config)

    monkeypatch.setattr(tuning._Trial, "measured", noted)
    before = torch.get_num_threads()
    try:
        for word in ("softmax", "sums"):  # the second adds to the first
            command = ["seed", str(file), "--cases", word, "--seconds", "0.1", "--threads", "1"]
            assert main(command) == 0
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr()
    assert "[1/1] softmax 64x150: " in printed.err
    assert f"written: {file}, 2 kernels; CPU " in printed.out
    made = json.loads(file.read_text())
    assert {entry["threads"] for entry in made["records"]} == {1}
    assert [path.name for path in tmp_path.iterdir()] == ["cpu.json"], "nothing else is left"
    found = {record.source for _, record in entries("the seed", made)[0]}
    assert NO_KERNELS not in found
    assert {source_digest(choice) for choice in tried} >= found
    assert main(["seed", str(file), "--list"]) == 0
    assert capsys.readouterr().out == "softmax 64x150\nsums 64x150\n"
    for more, said in (
        (["--cases", "nothing"], "no case has one of these words"),
        (["--threads", "100000"], "100000 threads are asked for"),
        (["--target", "cuda", "--threads", "1"], "--threads is for a CPU alone"),
        (["--processes", "2"], "--processes is for a GPU alone"),
    ):
        assert main(["seed", str(file), *more]) == 1
        assert said in capsys.readouterr().err


def test_processes_tune_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning_database.VARIABLE, str(tmp_path / "kept.sqlite3"))
    monkeypatch.setattr(seed, "GAIN", 0.0)
    cases = seed_cases.seed_cases("cpu", ("sums of rows 1x768", "mean of all 1x768"))
    told: list[str] = []
    kept: list[dict[str, Any]] = []
    made = seed.tuned_seed(cases, "cpu", 0.1, processes=2, tell=told.append, keep=kept.append)
    assert len(kept) == 2, "one that is broken off has a part"
    assert kept[-1] == made
    assert len(told) == len(cases) == 2
    assert {text.partition("] ")[2].partition(":")[0] for text in told} == {x.name for x in cases}
    assert not any("left out" in text for text in told)


def request_of(subject: tuning.Subject) -> Request:
    """The request for a subject, as a later compilation makes it."""
    return Request(subject.program, target="cpu", dtype=subject.storage)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        (bb.ops.softmax, {"x": "M:64 N:150"}),
        (lambda x, y: bb.ops.relu(x @ y), {"x": "M:64 K:96", "y": "K:96 N:80"}),
    ],
)
def test_a_configuration_has_the_kernels_that_were_searched(
    function: Any, arrays: dict[str, str], target: str
) -> None:
    """A seed is found again: its configuration as data gives the same source."""
    program = bb.trace(function, **arrays)
    request = Request(program, target=target, capability=90 if target == "cuda" else None)
    machine = known()["h200"] if target == "cuda" else machine_for("cpu")
    improver = Improver(choose(request), machine)
    best = improver.searched(())
    assert best
    for choice in best:
        config = Config.from_data(json.loads(json.dumps(choice.config.data())))
        again = choose(replace(request, config=config))[0]
        assert source_digest(again) == source_digest(replace(choice, name="another"))
    assert len({source_digest(choice) for choice in best}) > 1


def test_a_seed_of_cpus_has_what_is_clearly_faster_than_the_usual_choice() -> None:
    machine, kept = machine_for("cpu"), TuningDatabase(None)

    def put(digest: str, *times: float, machine: Machine) -> None:
        threads = machine.processors if machine.target == "cpu" else 1
        key = Key(digest, (), machine.name, threads, ())
        for hour, seconds in enumerate(times):  # the first is that of the usual choice
            made = replace(record({"tile": hour}, seconds), made=f"2026-01-01T0{hour}:00:00")
            kept.put(key, made)

    gpu = known()["h200"]
    for where in (machine, gpu):
        put("much", 2.0, 1.0, machine=where)
        put("little", 1.01, 1.0, machine=where)
        put("none", 1.0, 2.0, machine=where)
        put("fails", float("inf"), machine=where)
    kept.put(Key("old", (), machine.name, machine.processors, (), "another"), record({}, 1.0))
    found = {key.digest: r.config["tile"] for key, r in seed.best_of(kept, machine)}
    assert found == {"much": 1}
    found = {key.digest: r.config["tile"] for key, r in seed.best_of(kept, gpu)}
    assert found == {"much": 1, "little": 1, "none": 0}, "their times count"


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_cases(target: str) -> None:
    cases = seed_cases.seed_cases(target)
    assert len({case.name for case in cases}) == len(cases) > 100
    assert len(seed_cases.seed_cases(target, ("attention",))) > 4
    small = min(cases, key=lambda case: sum(map(len, case.shapes)))
    assert small.function(*(torch.randn(shape) for shape in small.shapes)) is not None


def test_every_case_runs() -> None:
    """Each function once, with small arrays."""
    sizes = {"T": 3, "D": 4, "F": 6, "G": 8, "H": 2, "E": 2, "V": 5}
    for name, function, axes in seed_cases.FUNCTIONS:
        case = seed_cases._case(name, function, axes, sizes)
        made = case.function(*(torch.randn(shape) for shape in case.shapes))
        assert all(x.isfinite().all() for x in (made if isinstance(made, tuple) else (made,)))
