"""Several ranks on one machine: a script in a process for each, none of which outlives a test."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SECONDS = 400.0
"""The time for all ranks; those that are left then are ended, and the test fails with None."""


def run_ranks(
    script: Path, cases: tuple[str, ...], ranks: int, folder: Path, seconds: float = SECONDS
) -> list[dict[str, Any]]:
    """The last line that each rank printed, read as JSON."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    files = [(folder / f"{rank}.out", folder / f"{rank}.err") for rank in range(ranks)]
    started = []
    try:
        for rank, (out, err) in enumerate(files):
            own = [str(rank), str(ranks), str(folder / "store"), *cases]
            command = [sys.executable, "-W", "ignore", str(script), *own]
            with out.open("w") as stdout, err.open("w") as stderr:
                started.append(
                    subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
                )
        end = time.monotonic() + seconds
        while any(process.poll() is None for process in started) and time.monotonic() < end:
            if any(process.poll() for process in started):  # others wait for one that has failed
                break
            time.sleep(0.05)
    finally:
        codes = [process.poll() for process in started]
        for process in started:
            process.kill()
            process.wait()
    told = [f"rank {rank}:\n{err.read_text()[-3000:]}" for rank, (_, err) in enumerate(files)]
    assert codes == [0] * ranks, "\n".join((f"ended with {codes}", *told))
    return [json.loads(out.read_text().splitlines()[-1]) for out, _ in files]
