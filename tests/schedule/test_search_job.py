"""Schedules that worker processes search: the same as those that this process finds."""

import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import astuple
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import search_job
from blockbuster_fusion.array import ops as o
from blockbuster_fusion.array.trace import trace
from blockbuster_fusion.compiler import Request
from blockbuster_fusion.errors import WorkerFailed
from blockbuster_fusion.improve import Improver, Ranked, merged
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.runtime import workers
from blockbuster_fusion.runtime.workers import (
    Workers,
    forget_shared_workers,
    shared_workers,
)
from blockbuster_fusion.search_job import SearchesAhead, SearchJob, forecast, found, run_job

H200 = known()["h200"]
EXAMPLES = ("attention", "layernorm-matmul", "rmsnorm-swiglu")


def job_of(name: str, length: int = 256) -> SearchJob:
    """One of the paper's programs in bfloat16, with sizes that only a call has."""
    program = bb.examples.find(name)
    arrays = (*program.inputs, *program.outputs)
    request = Request(
        program,
        target="cuda",
        dtype={array.name: DType.bfloat16 for array in arrays},
        capability=90,
    )
    axes = sorted({axis for given in program.inputs for axis in given.type.axes}, key=str)
    return SearchJob(request, False, tuple((axis, length) for axis in axes), H200)


def test_a_program_that_reads_a_transpose() -> None:
    """Tiles of dims that share an axis stay apart, and so do options of schedules."""
    program = trace(lambda X: X + o.transpose(X), "M M")
    storage = {array.name: DType.float32 for array in (*program.inputs, *program.outputs)}
    request = Request(program, target="cuda", dtype=storage, capability=90)
    axes = tuple((axis, 1024) for axis in {*program.inputs[0].type.axes})
    check(SearchJob(request, True, axes, H200))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worker_finds_the_same(name: str) -> None:
    check(job_of(name))


def check(job: SearchJob) -> None:
    """A job that was text once has the same answer."""
    choices, ahead = job.choices(), SearchesAhead()
    expected = Improver(choices, job.machine).searched(job.sizes)
    points = ahead.points([answered(job)])
    apart = ahead.points(map(answered, job.shared()))
    assert [(x["config"], x["ranked"]) for x in apart] == [
        (x["config"], x["ranked"]) for x in points
    ]
    made = found(points, choices)
    assert len(made) > 1
    assert [str(x.config) for x in made] == [str(x.config) for x in expected]
    assert [[*x.tiles.items()] for x in made] == [[*x.tiles.items()] for x in expected]
    assert [x.graph for x in made] == [x.graph for x in expected]
    assert [x.schedule for x in made] == [x.schedule for x in expected]
    first = forecast(expected[0], job.sizes, job.machine)
    assert (points[0]["spent"], points[0]["error"]) == ([*astuple(first.seconds)], first.error)


def answered(job: SearchJob) -> Future[Any]:
    """The answer to a job that was text once."""
    made: Future[Any] = Future()
    made.set_result(json.loads(json.dumps(run_job(json.loads(json.dumps(job.data()))))))
    return made


@pytest.fixture
def some_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if there were four processors."""
    forget_shared_workers()
    monkeypatch.setattr(workers, "usual_workers", lambda: 4)
    yield
    made = shared_workers()
    assert made is not None
    made.close()
    forget_shared_workers()


def test_processes_search_at_the_same_time(some_workers: None) -> None:
    jobs = {name: job_of(name, 128) for name in EXAMPLES[:2]}
    ahead = SearchesAhead()
    ahead.start(jobs)
    assert {*ahead.waiting} == {*jobs}
    for name, job in jobs.items():
        improver = Improver(job.choices(), H200)
        first = ahead.forecast(name)
        made = ahead.result(name, improver, job.sizes)
        assert [str(x.config) for x in made] == [
            str(x.config) for x in improver.searched(job.sizes)
        ]
        assert first == forecast(made[0], job.sizes, H200)
        assert ahead.forecast(name) is None


def test_a_job_that_fails_is_done_here() -> None:
    job, ahead = job_of("attention", 64), SearchesAhead()
    failed: Future[dict[str, object]] = Future()
    failed.set_exception(WorkerFailed(problem="it ended with status -9"))
    ahead.waiting["attention"] = [failed]
    assert ahead.forecast("attention") is None
    assert ahead.result("attention", Improver(job.choices(), H200), job.sizes)


@pytest.mark.parametrize(
    ("workers", "searches", "told"),
    [
        (4, EXAMPLES[:2], [0, 1, 0, 1]),  # each snapshot is a job
        (3, EXAMPLES[:2], [None, None]),  # each search is one
        (2, EXAMPLES[:1], [0, 1]),
        (1, EXAMPLES[:1], []),  # this process would only wait
    ],
)
def test_snapshots_are_searched_apart_if_there_are_workers_enough(
    workers: int,
    searches: Sequence[str],
    told: list[int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int | None] = []

    class Some:
        free = workers

        def job(self, data: dict[str, Any]) -> Future[Any]:
            given.append(data["only"])
            return Future()

    monkeypatch.setattr(search_job, "shared_workers", Some)
    ahead = SearchesAhead()
    ahead.start({name: job_of(name) for name in searches})
    assert given == told
    assert sum(map(len, ahead.waiting.values())) == len(told)


def test_few_processors_have_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_shared_workers()
    monkeypatch.setattr(workers, "usual_workers", lambda: 3)
    ahead = SearchesAhead()
    ahead.start({name: job_of(name) for name in EXAMPLES})
    assert not ahead.waiting
    forget_shared_workers()


def test_processes_of_a_run_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_shared_workers()
    monkeypatch.setattr(workers, "usual_workers", lambda: 16)
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", "8")
    assert shared_workers() is None
    forget_shared_workers()


def test_the_best_of_each_snapshot_counts_among_all() -> None:
    """One that is not the first of its own snapshot may be close to the best of another."""
    first = [Ranked(1.0, 1.5, "A")]
    other = [Ranked(1.025, 1.1 + i / 100, f"B{i}") for i in range(4)] + [Ranked(1.01, 1.2, "B")]
    assert [x.choice for x in merged([first, other])] == ["B", "A", "B0", "B1"]
    assert [x.choice for x in merged([other, [Ranked(math.inf, 0.0, "none")]], 1)] == ["B0"]


def test_workers_are_free_when_their_tasks_are_done() -> None:
    some, hold = Workers(2), threading.Event()
    assert some.free == 2
    waiting = [some.run(hold.wait) for _ in range(3)]
    assert some.free == 0
    hold.set()
    assert all(task.result(60) for task in waiting)
    assert some.free == 2
    some.close()
