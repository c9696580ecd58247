"""Tuning on a Ray cluster: jobs go to its nodes, and their records come back.

A node needs this package and PyTorch. A job has what it measures on to itself: a GPU, or all cores
of the smallest node.
"""

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from blockbuster_fusion.errors import BadRecord, MissingPackage, NoCluster, WrongKind
from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.tuning_database import Key
from blockbuster_fusion.torch.rivals.jobs import Job, run_job
from blockbuster_fusion.torch.rivals.tuning import Subject, Tuner

GRACE = 30.0
"""The seconds that nodes have beyond the budget to finish what they compile and measure."""
LONGEST = 3600.0
"""The seconds of one wait for a node."""
REACH = 10.0
"""The seconds in which a cluster has to answer."""


class Cluster:
    """A Ray cluster: "local" starts one on this machine, "auto" or HOST:PORT joins one."""

    def __init__(self, address: str) -> None:
        if not isinstance(address, str) or not address:
            wanted, remedy = "the address of a Ray cluster", 'write "auto", "local" or HOST:PORT'
            raise WrongKind(function="tune", wanted=wanted, given=repr(address), remedy=remedy)
        try:
            import ray
        except ImportError as error:
            raise MissingPackage(function="tune", package="ray", extra="ray") from error
        self.ray: Any = ray
        self.address = address
        self.is_own = not ray.is_initialized()
        """True if the connection is made here, and so ends here."""
        if self.is_own:
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            local: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
            try:
                _check_reachable(address)
                ray.init(address=address, **quiet, **local)
            except (OSError, ValueError, RuntimeError) as error:
                problem = (str(error) or type(error).__name__).partition(". ")[0].rstrip(".")
                raise NoCluster(address=address, problem=problem) from error

    def places(self, target: str) -> int:
        """The number of jobs that run at the same time, or NoCluster."""
        name, share = self._need(target)
        found = sum(int(r.get(name, 0)) // share for r in self._resources())
        if not found:
            raise NoCluster(address=self.address, problem=f"no node of it has a {name}")
        return found

    def results(self, jobs: Sequence[Job], seconds: float) -> Iterator[dict[str, Any]]:
        """The records of jobs, as they come; those that fail or come too late are told."""
        end = time.monotonic() + seconds
        waiting = [self._sent(job) for job in jobs]
        try:
            while waiting and (left := end - time.monotonic()) > 0:
                done, waiting = self.ray.wait(waiting, timeout=min(left, LONGEST))
                for reference in done:
                    try:
                        yield self.ray.get(reference)
                    except self.ray.exceptions.RayError as error:
                        said = (str(error).splitlines() or [type(error).__name__])[-1]
                        log.warning("a job failed on the cluster: %s", said)
            if waiting:
                log.warning("%d jobs on the cluster did not end in time", len(waiting))
        finally:
            for reference in waiting:
                with suppress(Exception):  # the connection may be gone
                    self.ray.cancel(reference, force=True)

    def close(self) -> None:
        """Ends the connection, and a cluster that was started here."""
        if self.is_own:
            self.ray.shutdown()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _sent(self, job: Job) -> Any:
        name, share = self._need(job.target)
        needs = {"num_gpus": 1, "num_cpus": 1} if name == "GPU" else {"num_cpus": share}
        return self.ray.remote(run_job).options(max_retries=1, **needs).remote(job.data())

    def _need(self, target: str) -> tuple[str, int]:
        """The resource that a job measures on, and how much of it."""
        if target == "cuda":
            return "GPU", 1
        cores = [int(r.get("CPU", 0)) for r in self._resources()]
        return "CPU", min((count for count in cores if count), default=1)

    def _resources(self) -> list[dict[str, float]]:
        """The resources of each node that is alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]


def _check_reachable(address: str) -> None:
    """OSError if nothing listens at HOST:PORT; Ray itself would ask for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=REACH).close()


class ClusterTuner(Tuner):
    """A tuner that has a cluster measure what it is going to ask for.

    The search then finds its records in the database. What no node like this machine has measured
    is measured here.
    """

    def __init__(self, seconds: float, workers: int | None, address: str) -> None:
        super().__init__(seconds, workers)
        self.cluster = Cluster(address)

    def ahead(self, subjects: Iterable[Subject]) -> None:
        new: dict[Key, Job] = {}
        for subject in subjects:  # one at a time: each has arrays
            configs = [choice.config for choice in subject.leading]
            known = self.database.known
            configs = [c for c in configs if known(subject.key, c.data()) is None]
            if configs:
                new[subject.key] = Job.of(subject, configs, self.left)
        jobs = self.shares([*new.values()])
        with doing("tuning on the cluster", len(jobs)) as task:
            for records in self.cluster.results(jobs, self.left + GRACE):
                task.step()
                try:
                    self.database.merge(records, "what a node has sent")
                except BadRecord as error:  # the node has another version
                    log.warning("not taken over: %s", error)
        for key, job in new.items():
            if not self.database.all(key):
                here = f"{key.machine} with {key.threads} threads"
                log.warning("%s is tuned here too: no node is a %s", job.program.name, here)

    def shares(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs, each in as many shares as there are places for it, within the time."""
        made: list[Job] = []
        for job in jobs:
            places = self.cluster.places(job.target)
            count = min(len(job.configs), max(1, places // len(jobs)))
            seconds = job.seconds * min(1.0, places / len(jobs))
            made += [
                replace(job, configs=job.configs[at::count], seconds=seconds) for at in range(count)
            ]
        return made

    def close(self) -> None:
        super().close()
        self.cluster.close()


def tuner_for(seconds: float, workers: int | None, address: str | None) -> Tuner:
    """A tuner on this machine, or on the Ray cluster at an address."""
    if address is None:
        return Tuner(seconds, workers)
    return ClusterTuner(seconds, workers, address)
