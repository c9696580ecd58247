"""A harness for fuzzers: runs cases in processes, shrinks failures and saves them as files.

A fuzzer is an object with four methods:

- `generate(seed)` gives the case of a seed; the same seed gives the same case;
- `run(case)` gives None, or a `Failure` that names the fault in a word;
- `shrink(case)` yields smaller cases, the most drastic first;
- `save(case)` gives the text of a Python file that runs the case.

An exception in `run` counts as a crash, and a case that exceeds its time limit as a hang. A file
with `if __name__ == "__main__": sys.exit(main(MyFuzzer()))` is a command with the options --count,
--seed, --jobs, --seconds and --save.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, Protocol


@dataclass(frozen=True)
class Failure:
    """One way in which a case fails: `kind` is wrong, crash or hang; `cause` sorts failures."""

    kind: str
    cause: str
    detail: str = ""


class Fuzzer(Protocol):
    """Random cases, and the property that each of them should have."""

    name: str

    def generate(self, seed: int) -> Any: ...

    def run(self, case: Any) -> Failure | None: ...

    def shrink(self, case: Any) -> Iterator[Any]: ...

    def save(self, case: Any) -> str: ...


@dataclass(frozen=True)
class Found:
    """A failure, the seed it came from, and the shrunk case as the text of a file."""

    seed: int
    failure: Failure
    text: str


@dataclass
class Summary:
    """The result of a run: the number of cases and the failures."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    found: list[Found] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.found

    def count(self, kind: str) -> int:
        return sum(found.failure.kind == kind for found in self.found)

    def __str__(self) -> str:
        counts = f"{self.count('wrong')} wrong, {self.count('crash')} crashes"
        lines = [f"{self.name}: {self.cases} cases, {counts}, {self.count('hang')} hangs"]
        lines[0] += f" ({self.seconds:.0f} s)"
        causes = Counter((f.failure.kind, f.failure.cause) for f in self.found)
        for (kind, cause), times in causes.most_common():
            seeds = [f.seed for f in self.found if f.failure.cause == cause][:5]
            lines.append(f"{times:>7}  {kind}: {cause}  (seeds {', '.join(map(str, seeds))})")
        return "\n".join(lines)


class Hang(BaseException):
    """A case ran longer than it may. No `except Exception` stops this."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises Hang in the main thread after some seconds."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(fuzzer: Fuzzer, case: Any, seconds: float) -> Failure | None:
    """The failure of a case, if it fails; crashes and hangs included."""
    try:
        with time_limit(seconds):
            return fuzzer.run(case)
    except Hang:
        return Failure("hang", f"more than {seconds:g} s")
    except Exception as error:
        return _crash(error)


def _crash(error: Exception) -> Failure:
    """An exception as a failure: its type, its place in the package, and its first line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "blockbuster_fusion" in frame.filename] or list(frames)
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "?"
    first = str(error).partition("\n")[0][:80]
    text = "".join(traceback.format_exception(error))
    return Failure("crash", f"{type(error).__name__} in {place}: {first}", text)


def shrunk(
    fuzzer: Fuzzer, case: Any, failure: Failure, seconds: float, budget: float
) -> tuple[Any, Failure]:
    """The smallest case found that fails in the same way, within a budget of seconds."""
    end = time.monotonic() + budget
    smaller = fuzzer.shrink(case)
    while time.monotonic() < end:
        candidate = next(smaller, None)
        if candidate is None:
            break
        found = outcome(fuzzer, candidate, seconds)
        if found is not None and _is_like(found, failure):
            case, failure, smaller = candidate, found, fuzzer.shrink(candidate)
    return case, failure


def _is_like(one: Failure, other: Failure) -> bool:
    """True if two failures are of one kind, and their causes begin alike."""
    causes = (failure.cause.partition(":")[0] for failure in (one, other))
    return one.kind == other.kind and len({*causes}) == 1


def tried(fuzzer: Fuzzer, seed: int, seconds: float, budget: float) -> Found | None:
    """The failure of the case of a seed, shrunk and written down, if it fails."""
    try:
        with time_limit(seconds):
            case = fuzzer.generate(seed)
    except Hang:
        return Found(seed, Failure("hang", "the generator does not end"), "")
    except Exception as error:
        return Found(seed, _crash(error), "")
    failure = outcome(fuzzer, case, seconds)
    if failure is None:
        return None
    case, failure = shrunk(fuzzer, case, failure, seconds, budget)
    note = f"{fuzzer.name}, seed {seed}: {failure.kind}, {failure.cause}"
    comment = "\n".join(f"# {line}" for line in f"{note}\n{failure.detail}".strip().splitlines())
    return Found(seed, failure, f"{comment}\n{fuzzer.save(case)}")


# ---------------------------------------------------------------- many cases


def fuzz(
    fuzzer: Fuzzer,
    seeds: Iterable[int],
    *,
    jobs: int = 0,
    seconds: float = 30.0,
    budget: float = 60.0,
    save: Path | None = None,
    progress: bool = False,
) -> Summary:
    """Tries the case of every seed, in so many processes; with `jobs` 0, in this one.

    `seconds` limits one case, `budget` the shrinking of one failure. Failures are written to the
    folder `save`, and a line of progress to a terminal.
    """
    summary, start = Summary(fuzzer.name), time.monotonic()
    results = (
        _in_processes(fuzzer, seeds, jobs, seconds, budget)
        if jobs
        else (tried(fuzzer, seed, seconds, budget) for seed in seeds)
    )
    for found in results:
        summary.cases += 1
        summary.seconds = time.monotonic() - start
        if found is not None:
            summary.found.append(found)
            if save is not None:
                save.mkdir(parents=True, exist_ok=True)
                (save / f"{fuzzer.name}_{found.seed}.py").write_text(found.text, encoding="utf-8")
        if progress and sys.stderr.isatty():
            failures = f"{len(summary.found)} failures"
            line = f"\r{fuzzer.name}: {summary.cases} cases, {failures}, {summary.seconds:.0f} s"
            print(line, end="", file=sys.stderr, flush=True)
    if progress and sys.stderr.isatty():
        print(file=sys.stderr)
    summary.seconds = time.monotonic() - start
    return summary


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    seed: int | None = None
    deadline: float = float("inf")


def _in_processes(
    fuzzer: Fuzzer, seeds: Iterable[int], jobs: int, seconds: float, budget: float
) -> Iterator[Found | None]:
    """The results in the order in which they come. A process that is stuck or dies is replaced."""
    context = multiprocessing.get_context("spawn")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's products share the cores

    def start() -> _Worker:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(fuzzer, there, seconds, budget), daemon=True)
        process.start()
        there.close()
        return _Worker(process, here)

    def give(worker: _Worker) -> bool:
        worker.seed = next(left, None)
        if worker.seed is None:
            worker.pipe.send(None)
            return False
        worker.pipe.send(worker.seed)
        worker.deadline = time.monotonic() + 3 * seconds + 2 * budget
        return True

    left = iter(seeds)
    workers = [worker for worker in (start() for _ in range(jobs)) if give(worker)]
    while workers:
        ready = wait([worker.pipe for worker in workers], timeout=1.0)
        for worker in list(workers):
            stuck = time.monotonic() > worker.deadline
            if worker.pipe not in ready and not stuck:
                continue
            assert worker.seed is not None
            try:
                if stuck:
                    raise EOFError
                yield worker.pipe.recv()
            except EOFError:
                worker.process.kill()
                worker.process.join()
                code = worker.process.exitcode
                died = Failure("crash", f"the process ended with {code}")
                yield Found(worker.seed, Failure("hang", "killed") if stuck else died, "")
                workers.remove(worker)
                replacement = start()
                if give(replacement):
                    workers.append(replacement)
                continue
            if not give(worker):
                workers.remove(worker)
                worker.process.join()


def _work(fuzzer: Fuzzer, pipe: Connection, seconds: float, budget: float) -> None:
    """Tries seeds as they come, until there is none."""
    while (seed := pipe.recv()) is not None:
        pipe.send(tried(fuzzer, seed, seconds, budget))


def main(fuzzer: Fuzzer, arguments: Sequence[str] | None = None) -> int:
    """The command of a fuzzer: prints a summary, and gives 1 where something fails."""
    parser = argparse.ArgumentParser(description=f"fuzzes {fuzzer.name}")
    parser.add_argument("--count", type=int, default=1000, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit of one case")
    parser.add_argument("--budget", type=float, default=60.0, help="time limit of one shrinking")
    parser.add_argument("--save", type=Path, default=Path("build/fuzz"), help="where failures go")
    options = parser.parse_args(arguments)
    summary = fuzz(
        fuzzer,
        range(options.seed, options.seed + options.count),
        jobs=options.jobs,
        seconds=options.seconds,
        budget=options.budget,
        save=options.save,
        progress=True,
    )
    print(summary)
    return 0 if summary.ok else 1
