"""The program of a worker process: it answers each line with a line.

A job is JSON: the name of a task, and what the task needs. So is the answer: the result, or the
reason of a failure. The module of a task is imported when the first job for it comes.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

SEARCH, KERNEL, PREPARE = "search", "kernel", "prepare"
"""The tasks; the last one prepares the modules of the others, so that these begin at once."""
TASKS: Final[Mapping[str, str]] = {
    SEARCH: "blockbuster_fusion.search_job",
    KERNEL: "blockbuster_fusion.runtime.triton.kernel_job",
}
"""The modules of tasks: `prepare` is called once, and `run_job` does a job."""


def answer(line: str) -> dict[str, Any]:
    """The answer to a job."""
    try:
        job = json.loads(line)
        if job["task"] == PREPARE:
            for module in TASKS.values():
                importlib.import_module(module).prepare()
            return {"result": None}
        return {"result": importlib.import_module(TASKS[job["task"]]).run_job(job)}
    except Exception as error:  # whatever a compiler raises
        return {"failure": f"{type(error).__name__}: {error}"}


def serve(jobs: TextIO, answers: TextIO) -> None:
    """Answers jobs, a line each, until there are no more."""
    for line in jobs:
        print(json.dumps(answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a compiler prints is no answer
    serve(sys.stdin, answers)
