"""A worker: a Python process of this package that answers each line with a line.

It is started as a program, so that the caller's own script is not run again. Jobs and answers are
JSON: nothing is unpickled. It ends when the caller does, because its input ends then.
"""

import contextlib
import os
import signal
import subprocess
import sys

from blockbuster_fusion.errors import WorkerFailed

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A worker is one of many: libraries that start threads with their import have one each."""


class WorkerProcess:
    """A process that runs a module of this package."""

    def __init__(self, module: str) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the caller, who ends the worker
                env={**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": paths},
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise WorkerFailed(problem=f"it cannot be started: {error}") from error
        self.has_answered = False

    def ask(self, line: str) -> str:
        """The answer to a line, or WorkerFailed if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except (OSError, ValueError) as error:
            raise WorkerFailed(problem=f"it does not listen: {error}") from error
        if not answer:
            self.end()
            raise WorkerFailed(problem=f"it ended with status {self.process.returncode}")
        self.has_answered = True
        return answer.strip()

    def end(self) -> None:
        """Ends the process, whatever it does, and what it has started."""
        if self.process.returncode is None:  # else its number may be that of another process
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
