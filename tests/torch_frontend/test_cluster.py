"""Tuning on a cluster: a job is data, and the records that come back count as if measured here."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.errors import MissingPackage, NoCluster, WrongKind
from blockbuster_fusion.runtime.tuning_database import TuningDatabase
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch import tune, tuned
from blockbuster_fusion.torch.rivals import cluster, jobs, library, tuning
from blockbuster_fusion.torch.rivals.jobs import Job
from blockbuster_fusion.torch.rivals.tuning import Subject

HERE = (tuned, tuning, library)
"""The modules that ask for the database."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> TuningDatabase:
    """The caller's database."""
    made = TuningDatabase(None)
    for module in HERE:
        monkeypatch.setattr(module, "database", lambda: made)
    return made


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No neighbours: they take long."""
    monkeypatch.setattr(tuning, "MOST_STEPS", 0)


def softmax(*lengths: int) -> Subject:
    x = np.random.default_rng(0).standard_normal(lengths).astype(np.float32)
    found = tune.subject_of(bb.examples.find("softmax"), (x,), {}, "cpu")
    return replace(found, choices=found.choices[:3])


def through_json(data: dict[str, Any]) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


class Node:
    """Stands in for a cluster: a database of its own, and jobs that come as JSON."""

    failing = False
    places_there = 2

    def __init__(self, address: str) -> None:
        self.database = TuningDatabase(None)
        self.jobs: list[Job] = []

    def places(self, target: str) -> int:
        return self.places_there

    def results(self, sent: Sequence[Job], seconds: float) -> Iterator[dict[str, Any]]:
        self.jobs += sent
        for job in sent:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tuning, "database", lambda: self.database)
                if not self.failing:
                    yield through_json(jobs.run_job(through_json(job.data())))

    def close(self) -> None: ...

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """The clusters that are joined."""
    made: list[Node] = []

    def joined(address: str) -> Node:
        made.append(Node(address))
        return made[-1]

    monkeypatch.setattr(cluster, "Cluster", joined)
    monkeypatch.setattr(tune, "Cluster", joined)
    return made


def test_a_job_is_data() -> None:
    subject = softmax(20, 70)
    configs = [choice.config for choice in subject.choices]
    job = Job.of(subject, configs, 3.0)
    again = Job.from_data(through_json(job.data()))
    assert again.data() == job.data()
    there = again.subject()
    assert there.key == subject.key
    assert [choice.config for choice in there.choices] == configs


def test_inputs_lie_in_memory_as_they_did() -> None:
    """Rows that are the same memory, and an input of whole numbers."""
    x = torch.randn(70).expand(20, 70)
    subject = replace(softmax(20, 70), inputs=[x])
    (made,) = Job.from_data(Job.of(subject, [], 1.0).data()).subject().inputs
    assert (made.shape, made.stride()) == (x.shape, x.stride())
    whole = jobs._array(((4, 3), (3, 1)), torch.int64, "cpu")
    assert not whole.any()


@pytest.mark.usefixtures("few")
def test_what_a_node_measures_counts_here(
    here: TuningDatabase, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = softmax(20, 70)
    found = tune.tune_subject(subject, 60, 1, "auto")
    (node,) = nodes
    shares = [[c.config.data() for c in subject.choices][at::2] for at in range(2)]
    assert [[c.data() for c in job.configs] for job in node.jobs] == shares
    assert here.export() == node.database.export(), "nothing is measured here"
    best = here.best(subject.key)
    assert best is not None
    assert best.config == found.config.data()
    tune.tune_subject(subject, 60, 1, "auto")
    assert not nodes[-1].jobs, "nothing is sent twice"


@pytest.mark.usefixtures("few")
def test_what_no_node_measures_is_measured_here(
    here: TuningDatabase,
    nodes: list[Node],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Node, "failing", True)
    found = tune.tune_subject(softmax(20, 71), 60, 1, "auto")
    assert found.tried == len(here.all(softmax(20, 71).key)) > 1
    assert "softmax is tuned here too: no node is a" in caplog.text


@pytest.mark.usefixtures("few")
def test_records_of_another_format_are_told(
    here: TuningDatabase, nodes: list[Node], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(jobs, "FORMAT", "blockbuster tuning 99")
    assert tune.tune_subject(softmax(20, 72), 60, 1, "auto").tried > 1
    assert "not taken over: what a node has sent: " in caplog.text


@pytest.mark.usefixtures("few")
def test_the_parts_of_a_model_are_sent_together(
    here: TuningDatabase, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_KNOWN", {})
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e3))
    torch._dynamo.reset()

    def model(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2 + 1).softmax(-1), y.sin().sum(0)

    x, y = torch.randn(21, 52), torch.randn(33, 5)
    made = bb.tune(model, x, y, ray="auto", workers=1)
    for found, wanted in zip(made(x, y), model(x, y), strict=True):
        torch.testing.assert_close(found, wanted)
    sent = [node for node in nodes if node.jobs]
    assert len({job.program.name for node in sent for job in node.jobs}) == 2
    assert len(sent) == 1, "both parts in one go"
    assert here.export() == sent[0].database.export()


class Nodes:
    """Stands in for Ray: the resources of nodes, and what jobs ask for."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.found = [{"Alive": True, "Resources": some} for some in resources]
        self.asked: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return self.found

    def remote(self, function: Any) -> "Nodes":
        return self

    def options(self, **asked: Any) -> Any:
        self.asked = asked
        return SimpleNamespace(remote=lambda data: None)


@pytest.mark.parametrize(
    ("target", "places", "asked"),
    [("cpu", 4, {"num_cpus": 8}), ("cuda", 2, {"num_cpus": 1, "num_gpus": 1})],
)
def test_a_job_measures_alone(
    target: str, places: int, asked: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU, or all cores of the smallest node."""
    there = Nodes({"CPU": 8.0, "GPU": 2.0}, {"CPU": 31.0}, {})
    monkeypatch.setitem(sys.modules, "ray", there)
    joined = cluster.Cluster("auto")
    assert joined.places(target) == places
    joined._sent(replace(Job.of(softmax(20, 70), [], 1.0), target=target))
    assert asked.items() <= there.asked.items()
    monkeypatch.setitem(sys.modules, "ray", Nodes({}))
    with pytest.raises(NoCluster, match="no node of it has a"):
        cluster.Cluster("auto").places(target)


@pytest.mark.parametrize("address", ["", 3])
def test_an_address_is_a_text(address: Any) -> None:
    with pytest.raises(WrongKind, match="takes the address of a Ray cluster"):
        bb.tune(bb.examples.find("softmax"), torch.ones(3, 4), ray=address)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackage, match=r"pip install 'blockbuster-fusion\[ray\]'"):
        bb.tune(bb.examples.find("softmax"), torch.ones(3, 4), ray="auto")


# ------------------------------------------------------------------------ Ray itself


RAY = """
import ray
import blockbuster_fusion as bb
from blockbuster_fusion.errors import NoCluster
from blockbuster_fusion.torch.rivals import cluster, tuning
from blockbuster_fusion.tools.bench import inputs_for
from blockbuster_fusion.torch.tune import subject_of, tune_subject

try:
    cluster.Cluster("localhost:1")
except NoCluster as error:
    print(error)
tuning._Trial.measured = None  # this process measures nothing
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
program = bb.examples.find("softmax")
subject = subject_of(program, (), inputs_for(program, {"M": 20, "N": 70}), "cpu")
found = tune_subject(subject, seconds=60, workers=1, ray="auto")
print("the connection is the caller's:", ray.is_initialized())
print(found)
"""


@pytest.mark.long
def test_a_local_ray_cluster_tunes(tmp_path: Path) -> None:
    """In a process of its own: Ray has threads that stay."""
    database = tmp_path / "tuning.sqlite3"
    environment = {**os.environ, "BLOCKBUSTER_DATABASE": str(database)}
    ended = subprocess.run(
        [sys.executable, "-c", RAY], capture_output=True, text=True, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    unreachable, own, found = ended.stdout.splitlines()
    assert unreachable.startswith("no Ray cluster at 'localhost:1': ")
    assert own == "the connection is the caller's: True"
    (key,) = TuningDatabase(database).keys()
    records = TuningDatabase(database).all(key)
    assert found.endswith(f"the fastest of {len(records)}")
    assert any(record.ok for record in records)
