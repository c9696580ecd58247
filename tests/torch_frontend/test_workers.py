"""Configurations are compiled at the same time before they are measured; faults cost nothing."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import executable_of
from blockbuster_fusion.errors import CompilerFailed, WorkerFailed, WrongKind
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.runtime import workers
from blockbuster_fusion.runtime.c import compiler
from blockbuster_fusion.runtime.tuning_database import TuningDatabase
from blockbuster_fusion.runtime.worker_process import WorkerProcess
from blockbuster_fusion.runtime.workers import Workers, usual_workers
from blockbuster_fusion.torch.rivals import compiling, tuning
from blockbuster_fusion.torch.rivals.compiling import compile_choices
from blockbuster_fusion.torch.rivals.tuning import Subject, Tuner
from blockbuster_fusion.torch.tune import subject_of

FOREVER = 1e9


@cache
def softmax() -> Subject:
    """Softmax with two configurations; nothing is compiled or measured."""
    made = subject_of(bb.examples.find("softmax"), (np.ones((20, 70), np.float32),), {}, "cpu")
    found = {print_c(*choice.scheduled()): choice for choice in made.choices}
    return replace(made, choices=[*found.values()][:2])


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """Softmax, in a process that knows of no kernel and of no measurement."""
    made = softmax()
    monkeypatch.setenv("BLOCKBUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "database", lambda: TuningDatabase(None))
    monkeypatch.setattr(tuning, "MOST_STEPS", 0)
    return made


def compiler_that(tmp_path: Path, does: str) -> str:
    """A C compiler that notes its process and does something first."""
    file = tmp_path / "slow-cc"
    file.write_text(f'#!/bin/sh\ntouch "{tmp_path}/cc-$$"\n{does}\nexec cc "$@"\n')
    file.chmod(0o755)
    return str(file)


def running(tmp_path: Path) -> list[int]:
    """The compilers of `compiler_that` that still run."""
    noted = [int(file.name.split("-")[1]) for file in tmp_path.glob("cc-*")]
    return [pid for pid in noted if Path(f"/proc/{pid}").exists()]


def test_what_is_compiled_ahead_is_found(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Workers(2)
    some = subject.choices
    compile_choices(pool, some, subject.inputs, subject.sizes, FOREVER)
    pool.close()

    def refuse(*_: object) -> str:
        raise AssertionError("it is compiled again")

    monkeypatch.setattr(compiler, "_run", refuse)
    for choice in some:
        executable_of([choice], subject.threads)


@pytest.mark.parametrize(("count", "choices"), [(0, 2), (1, 2), (4, 1)])
def test_no_worker_starts_without_work_for_several(
    count: int, choices: int, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.threading, "Thread", None)
    some = subject.choices[:choices]
    compile_choices(Workers(count), some, subject.inputs, subject.sizes, FOREVER)


def test_what_is_known_is_not_compiled(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tuner(workers=2) as tuner:
        first = tuner.best(subject)
        monkeypatch.setattr(compiling, "source_of", None)
        assert tuner.best(subject) == first


def test_a_compiler_that_fails_ahead_is_asked_again(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(source: str) -> None:
        raise CompilerFailed(command="cc", source="a kernel", message="killed")

    monkeypatch.setattr(compiling, "compile_c", fails)
    with Tuner(workers=2) as tuner:
        found = tuner.best(subject)
        assert found is not None
        assert found[1].ok
        assert len(tuner.database.all(subject.key)) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_compilers_end_with_the_time(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "CC", compiler_that(tmp_path, 'case "$1" in --version) ;; *) sleep 100;; esac')
    )
    pool = Workers(2)
    compile_choices(pool, subject.choices, subject.inputs, subject.sizes, 0.5)
    assert [*tmp_path.glob("cc-*")]
    assert not running(tmp_path)
    compile_choices(pool, subject.choices, subject.inputs, subject.sizes, FOREVER)  # does nothing


def test_a_worker_that_does_not_start_is_left_alone(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKER", "blockbuster_fusion.no_such_module")
    pool = Workers(2)
    monkeypatch.setattr(
        compiling, "_tasks", lambda *_: {n: partial(pool.ask, {"number": n}) for n in range(4)}
    )
    compile_choices(pool, subject.choices, subject.inputs, subject.sizes, FOREVER)
    with pytest.raises(WorkerFailed, match="it was stopped"):
        pool.ask({})
    pool.close()


def test_a_worker_that_dies_is_replaced(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were not enough memory for it."""
    started: list[object] = []

    class Mortal:
        """Ends at its second job."""

        has_answered = False

        def __init__(self, module: str) -> None:
            started.append(self)

        def ask(self, job: str) -> str:
            if self.has_answered:
                raise WorkerFailed(problem="it ended with status -9")
            self.has_answered = True
            return '{"result": null}'

        def end(self) -> None: ...

    monkeypatch.setattr(workers, "WorkerProcess", Mortal)
    pool = Workers(2)
    monkeypatch.setattr(
        compiling, "_tasks", lambda *_: {n: partial(pool.ask, {"number": n}) for n in range(40)}
    )
    compile_choices(pool, subject.choices, subject.inputs, subject.sizes, FOREVER)
    pool.close()
    assert len(started) > 10


def test_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOCKBUSTER_WORKERS", raising=False)
    assert 1 <= usual_workers() <= workers.MOST_USUAL
    monkeypatch.setenv("BLOCKBUSTER_WORKERS", "3")
    assert usual_workers() == 3
    monkeypatch.setenv("BLOCKBUSTER_WORKERS", "many")
    with pytest.raises(WrongKind, match="BLOCKBUSTER_WORKERS: takes a whole number, not 'many'"):
        usual_workers()


@pytest.mark.parametrize("given", [-1, 1.5, "2", True])
def test_a_wrong_number_of_workers(given: Any) -> None:
    x = torch.ones(3, 4)
    with pytest.raises(WrongKind, match="takes a number of workers from 0 on"):
        bb.tune(bb.examples.find("softmax"), x, workers=given)


# ------------------------------------------------------------------------ Ctrl-C


def records(database: Path) -> int:
    connection = sqlite3.connect(database)
    try:
        return int(connection.execute("SELECT COUNT(*) FROM records").fetchone()[0])
    except sqlite3.Error:  # its table is not there yet
        return 0
    finally:
        connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    """The command says so, ends with 130, and leaves no compiler behind."""
    database = tmp_path / "tuning.sqlite3"
    environment = {
        **os.environ,
        "BLOCKBUSTER_DATABASE": str(database),
        "CC": compiler_that(tmp_path, "sleep 0.2"),
    }
    command = [sys.executable, "-m", "blockbuster_command", "tune", "attention", "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--size", "M=8,N=8,D=8,L=8", "--seconds", "500"],
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    while process.poll() is None and not (database.exists() and records(database)):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert said.startswith("blockbuster: stopped; ")
    assert f"configurations measured, kept in {database}; the fastest: " in said
    assert records(database)
    assert not running(tmp_path)


def test_a_process_that_has_ended_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be that of another process by then."""
    worker = WorkerProcess("blockbuster_fusion.version")  # it ends at once
    with pytest.raises(WorkerFailed):
        worker.ask("anything")
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda number, signal: killed.append(number))
    worker.end()
    assert not killed


def test_a_bad_number_of_workers_is_told_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(workers.VARIABLE, "many")
    assert bb.compile(lambda x: x.exp() * 2, torch.ones(3, 4)) is not None
    with pytest.raises(WrongKind, match="a whole number"):
        bb.tune(bb.examples.find("softmax"), torch.ones(3, 4))


# ------------------------------------------------------------------------ shared workers


class Obedient:
    """A process that answers every job with its process's number."""

    made: ClassVar[list["Obedient"]] = []
    answer = '{"result": 1}'

    def __init__(self, module: str) -> None:
        self.has_answered, self.has_ended = False, False
        self.made.append(self)

    def ask(self, job: str) -> str:
        self.has_answered = True
        return self.answer

    def end(self) -> None:
        self.has_ended = True


@pytest.fixture
def obedient(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Obedient]]:
    monkeypatch.setattr(Obedient, "made", [])
    monkeypatch.setattr(workers, "WorkerProcess", Obedient)
    monkeypatch.setattr(workers, "usual_workers", lambda: 4)
    workers.forget_shared_workers()
    yield Obedient
    made = workers.shared_workers()
    if made is not None:
        made.close()
    workers.forget_shared_workers()


def test_threads_that_race_get_the_same_workers(obedient: type[Obedient]) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = {*pool.map(lambda _: workers.shared_workers(), range(64))}
    (made,) = found
    assert made is not None
    assert [made.job({}).result() for _ in range(9)] == [1] * 9
    assert len(obedient.made) <= 3


def test_an_answer_that_is_cut_short_fails_the_job_alone(
    obedient: type[Obedient], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Workers(1)
    monkeypatch.setattr(obedient, "answer", '{"result')
    with pytest.raises(WorkerFailed, match="its answer is none"):
        made.job({}).result()
    assert obedient.made[0].has_ended
    monkeypatch.setattr(obedient, "answer", '{"result": 2}')
    assert made.job({}).result() == 2
    made.close()
    with pytest.raises(WorkerFailed, match="it was stopped"):
        made.job({}).result()


@pytest.mark.parametrize("processes", ["0", "many", "", "-1"])
def test_a_strange_number_of_processes_counts_as_one(
    processes: str, obedient: type[Obedient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    made = workers.shared_workers()
    assert made is not None
    assert made.count == 3
