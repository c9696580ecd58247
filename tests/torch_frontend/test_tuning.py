"""Tuning: configurations are measured and checked, the best one runs, and nothing is lost."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BadConfig, WrongKind
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.runtime import tuning_database
from blockbuster_fusion.runtime.tuning_database import Key, Record, TuningDatabase
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.torch import tuned
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals import choose as choose_rivals
from blockbuster_fusion.torch.rivals import library, tuning, weighing
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.timing import Timing
from blockbuster_fusion.torch.tune import subject_of
from helpers.compilations import forget_parts
from helpers.machines import FOUR_CORES
from helpers.offline import captured, offline

OPTIONS = {"library": "auto"}
H200 = known()["h200"]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningDatabase:
    """A database of its own, a library that is slow, and nothing compiled before."""
    made = TuningDatabase(tmp_path / "tuning.sqlite3")
    for module in (tuned, tuning, library):
        monkeypatch.setattr(module, "database", lambda: made)
    monkeypatch.setattr(library, "_KNOWN", {})
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e3))
    forget(monkeypatch)
    return made


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process: what this one has compiled is not known."""
    torch._dynamo.reset()
    forget_parts(monkeypatch)


def model(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).softmax(-1)


def explained(mode: str | None, **more: Any) -> Any:
    x = torch.randn(40, 150)
    return bb.explain(model, x, mode=mode, options={**OPTIONS, **more})


def tuned_before(kept: TuningDatabase) -> tuple[Key, Record]:
    """Tunes the model; the key of its measurements, and the best of them."""
    explained("max-autotune")
    (key,) = kept.keys()
    best = kept.best(key)
    assert best is not None
    return key, best


def test_several_are_measured_and_the_fastest_runs(kept: TuningDatabase) -> None:
    found = explained("max-autotune")
    (key,) = kept.keys()
    records = kept.all(key)
    assert len(records) > 2
    assert all(record.ok for record in records)
    best = kept.best(key)
    assert best is not None
    assert best.seconds == min(record.seconds for record in records)
    config = Config.from_data(best.config)
    (part,) = {id(k.fused): k.fused for k in found.kernels}.values()
    ran = {dim.label: tile for dim, tile in part.executable.tiles.items()}
    assert config.tiles.items() <= ran.items()


def test_what_was_tuned_serves_later_compilations(
    kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, best = tuned_before(kept)
    count = len(kept.all(key))
    forget(monkeypatch)
    (part,) = {id(k.fused): k.fused for k in explained(None).kernels}.values()
    ran = {dim.label: tile for dim, tile in part.executable.tiles.items()}
    assert Config.from_data(best.config).tiles.items() <= ran.items()
    forget(monkeypatch)
    explained("max-autotune")
    assert len(kept.all(key)) == count, "nothing is measured twice"


def test_what_was_measured_needs_no_margin(
    kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least time loses by the error of predictions; the measured one wins."""
    _, best = tuned_before(kept)
    least = Estimate(Seconds(best.seconds), "at least", "", 1.5)
    monkeypatch.setattr(choose_rivals.Chooser, "at_least", lambda *_: least)
    monkeypatch.setattr(weighing, "PLAN", {"cpu": 0.0})
    for factor, wins in ((1.2, True), (0.9, False)):
        limit = Seconds(best.seconds * factor)
        monkeypatch.setattr(library.LibraryTimes, "of", lambda *_, limit=limit: limit)
        forget(monkeypatch)
        found = explained(None, time_model=False).kernels
        assert any("softmax" in op for kernel in found for op in kernel.operators) is wins


def test_a_lucky_sample_does_not_win(kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """One configuration is measured too fast once: measured again in turns, it loses."""
    samples: dict[object, int] = {}

    def timed(run: Any, device: torch.device) -> Timing:
        samples[run] = samples.get(run, 0) + 1
        is_lucky = len(samples) == 3 and samples[run] == 1
        seconds = 1e-9 if is_lucky else 1e-3 * (1 + len(samples) if samples[run] == 1 else 1)
        return Timing(Seconds(seconds), is_sure=True)

    monkeypatch.setattr(tuning, "timed", timed)
    _, best = tuned_before(kept)
    assert best.rounds == tuning.ROUNDS
    assert best.seconds > 1e-6


def test_samples_that_have_waited_do_not_count(
    kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the rounds in which a configuration is measured in turns, one is sure."""
    samples: dict[object, int] = {}

    def timed(run: Any, device: torch.device) -> Timing:
        samples[run] = samples.get(run, 0) + 1
        is_sure = samples[run] in (1, 3)
        return Timing(Seconds(1e-3 * len(samples) if is_sure else 1.0), is_sure)

    monkeypatch.setattr(tuning, "timed", timed)
    key, best = tuned_before(kept)
    assert best.rounds == tuning.ROUNDS
    assert all(record.seconds < 0.1 for record in kept.all(key))


def test_a_wrong_kernel_never_wins(kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration with a wrong result is stored as such, and another one runs."""
    distance, seen = tuning.distance, []

    def wrong(found: Any, exact: Any) -> float:
        seen.append(1)
        return 1.0 if len(seen) == 2 else distance(found, exact)  # the first kernel's

    monkeypatch.setattr(tuning, "distance", wrong)
    explained("max-autotune")
    (key,) = kept.keys()
    bad = [record for record in kept.all(key) if not record.ok]
    assert len(bad) == 1
    best = kept.best(key)
    assert best is not None
    assert best.config != bad[0].config


def test_without_time_one_configuration_is_measured(kept: TuningDatabase) -> None:
    explained("max-autotune", seconds=0.0)
    (key,) = kept.keys()
    assert len(kept.all(key)) == 1


def test_a_time_that_is_not_sure_is_not_kept(
    kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs have held up every call: the time serves now, and no later compilation."""
    timed = tuning.timed
    monkeypatch.setattr(tuning, "timed", lambda *given: replace(timed(*given), is_sure=False))
    assert explained("max-autotune").kernels
    assert kept.keys() == []


def test_what_was_found_is_kept_when_tuning_is_stopped(
    kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed, count = tuning.timed, []

    def stopped(*given: Any) -> Timing:
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return timed(*given)

    monkeypatch.setattr(tuning, "timed", stopped)
    with pytest.raises(KeyboardInterrupt):
        explained("max-autotune")
    (key,) = kept.keys()
    assert len(kept.all(key)) == 2


def test_a_configuration_can_be_given() -> None:
    program = bb.trace(bb.ops.softmax, "M N")
    config = Config.from_data({"snapshot": 0, "tiles": {"M": 8}, "grid": "outer"})
    made = bb.compile(program, config=config, sizes={"M": 30, "N": 50})
    assert {tile for dim, tile in made.tiles.items() if dim.name == "M"} == {8}
    same = bb.compile(program, config=config.data(), sizes={"M": 30, "N": 50})
    assert same.source == made.source
    assert Config.from_data(config.data()) == config


def test_configurations_of_all_snapshots_can_be_given() -> None:
    """Those of the base of the rules too, which compete by default."""
    program = bb.examples.find("rmsnorm-swiglu")
    choices = choose(Request(program))
    assert len({choice.snapshot for choice in choices}) > 2
    for choice in choices:
        config = choice.config
        (same,) = choose(Request(program, config=config))
        assert same.config == config
        assert same.graph.digest == choice.graph.digest


def test_a_program_is_tuned(kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    program = bb.trace(bb.ops.softmax, "M N")
    x = np.random.default_rng(0).standard_normal((33, 70)).astype(np.float32)
    found = bb.tune(program, x, seconds=20)
    (key,) = kept.keys()
    assert dict(key.sizes) == {"M": 33, "N": 70}
    assert found.tried == len(kept.all(key)) > 1
    assert found.error < 1e-6
    exact = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(-1, keepdims=True)
    (made,) = found.executable(x)
    assert np.abs(made - exact).max() < 1e-6
    again = bb.compile(program, config=found.config)
    (same,) = again(x)
    assert np.array_equal(same, made)
    assert "the fastest of" in str(found)


def test_each_configuration_is_measured_with_its_own_threads(
    kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine where one thread and a swapped grid are the fastest, both are found."""
    program = bb.trace(lambda X, Y: {"Z": X @ Y}, X="M K", Y="K N")
    inputs = (torch.randn(130, 40), torch.randn(40, 210))
    measured: list[tuple[int, str]] = []

    def timed(made: bb.Executable, device: torch.device) -> Timing:
        threads = made.runner.kernels.threads
        measured.append((threads, made.source))
        is_swapped = made.nest.kernels[-1].grid[0].dim.name == "N"
        return Timing(Seconds(1e-3 * threads + (0.0 if is_swapped else 1e-3)), is_sure=True)

    monkeypatch.setattr(tuning, "launcher", lambda made, *_: made)
    monkeypatch.setattr(tuning, "timed", timed)
    subject = subject_of(program, inputs, {}, "cpu")
    first = subject.choices[0]
    first = replace(first, schedule=Schedule(), tiles=dict.fromkeys(first.tiles, 32))
    subject = replace(subject, choices=[first], machine=FOUR_CORES, threads=4)
    with tuning.Tuner(workers=1) as tuner:
        found = tuner.best(subject)
    assert found is not None
    schedule = found[0].schedule
    assert (schedule.threads, schedule.order[0]) == (1, "N.0")
    assert {threads for threads, _ in measured} == {1, 4}
    assert "const int64_t chunk = 1;" in "".join(source for _, source in measured)
    configs = [record.config for record in kept.all(subject.key)]
    assert {config.get("threads") for config in configs} == {None, 1}


@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        (lambda x: x + x.t(), 1),
        (lambda x: x[:20] + x[20:], 2),
        (lambda x: x * x.sum(-1, keepdim=True), 1),
    ],
    ids=["transposed", "halves", "once"],
)
def test_an_array_that_is_read_twice_is_one_when_it_is_measured(function: Any, arrays: int) -> None:
    """Kernels that read a block and its transpose soon after each other were measured on two."""
    (graph,) = captured(function, torch.randn(40, 40))
    options = Options(target="cuda", library="never")
    with offline(H200):
        chooser = graph.chooser(options, H200)
        chooser.choose_kernels()
        (nodes,) = chooser.parts.taken
        subject = tuning.subject_of(chooser.parts, nodes, H200)
    assert len({x.data_ptr() for x in subject.inputs}) == arrays
    assert all(x.count_nonzero() for x in subject.inputs)


def test_a_model_is_tuned(kept: TuningDatabase) -> None:
    x = torch.randn(40, 150)
    found = bb.tune(model, x, seconds=20)
    torch.testing.assert_close(found(x), model(x))
    assert kept.keys()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"tile": {}}, "tile: unknown; known are"),
        ({"tiles": 3}, "tiles: 3 is no mapping to whole numbers"),
        ({"tiles": {"M": "8"}}, "is no mapping to whole numbers"),
        ({"grid": "inner"}, "grid: 'inner'; known are outer, all"),
        ({"snapshot": "last"}, "snapshot: 'last' is no number from 0 on"),
    ],
)
def test_bad_configurations(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(bb.errors.BadConfig, match=sentence):
        Config.from_data(data)


def test_a_configuration_stands_alone() -> None:
    with pytest.raises(bb.errors.WrongKind, match="config alone"):
        bb.compile(bb.trace(bb.ops.softmax, "M N"), config=Config(), tiles={"M": 8})


def test_an_old_configuration_is_left_out(
    kept: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile of a dim that is gone: the usual choice runs."""
    key, best = tuned_before(kept)
    fields = {"config": {**best.config, "tiles": {"Q.7": 4}}, "seconds": 0.0, "low": 0.0}
    kept.put(key, tuning_database.Record(**{**_fields(best), **fields}))
    forget(monkeypatch)
    assert explained(None).kernels


def _fields(record: tuning_database.Record) -> dict[str, Any]:
    names = ("config", "seconds", "low", "high", "error", "bar", "rounds")
    return {name: getattr(record, name) for name in names}


@pytest.mark.parametrize(
    ("inputs", "options", "sentence"),
    [
        ((np.zeros(3, np.float32),), {}, "takes an array with elements along M N"),
        ((np.zeros((0, 3), np.float32),), {}, "takes an array with elements along M N"),
        (("a",), {}, "takes arrays of numbers"),
        ((np.zeros((2, 3), np.float32),), {"seconds": "q"}, "takes a number of seconds"),
        ((np.zeros((2, 3), np.float32),), {"workers": "a"}, "takes a number of workers"),
    ],
)
def test_what_cannot_be_tuned_gets_a_sentence(
    inputs: tuple[Any, ...], options: dict[str, Any], sentence: str
) -> None:
    program = bb.trace(lambda X: bb.ops.softmax(X), X="M N")
    with pytest.raises(WrongKind, match=sentence):
        bb.tune(program, *inputs, **options)


def test_a_function_over_arrays_is_to_be_traced() -> None:
    with pytest.raises(WrongKind, match="trace the function first"):
        bb.tune(lambda X: bb.ops.softmax(X), np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("config", ["fast", 3, [1]])
def test_what_is_no_configuration_gets_a_sentence(config: object) -> None:
    with pytest.raises(BadConfig, match="is no configuration"):
        bb.compile(lambda X: bb.ops.softmax(X), X="M N", config=config)
