"""`blockbuster seed`: tunes parts of common models, and writes what was found as a seed."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.database import read_json
from blockbuster_fusion.cli.options import check_writable, positive, seconds
from blockbuster_fusion.errors import BlockbusterError, MissingPackage
from blockbuster_fusion.runtime.tuning_database import VARIABLE, database

EPILOG = """\
FILE is written after each case. A run that is broken off goes on where it was: measurements are
in FILE.sqlite3 until it ends. What FILE has already stays, unless it is measured again: runs with
other threads add to it.

examples:
    blockbuster seed cpu-avx2.json --threads 1 --seconds 10
    blockbuster seed nvidia-h200.json --target cuda --processes 8 --cases attention
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the file that is written")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    text = "cases whose name has one of these words (default: all)"
    parser.add_argument("--cases", nargs="+", default=[], metavar="WORD", help=text)
    text = "the most that a case takes (default: %(default)s)"
    parser.add_argument("--seconds", type=seconds, default=20.0, metavar="S", help=text)
    text = "the threads of the CPU (default: PyTorch's)"
    parser.add_argument("--threads", type=positive, metavar="N", help=text)
    text = "processes that compile at once on a GPU, and measure in turns (default: %(default)s)"
    parser.add_argument("--processes", type=positive, default=1, metavar="N", help=text)
    parser.add_argument("--list", action="store_true", help="print the cases, and measure nothing")


def _run(options: argparse.Namespace) -> None:
    try:
        from blockbuster_fusion.torch.seed import tuned_seed
        from blockbuster_fusion.torch.seed_cases import seed_cases
    except ImportError as error:
        package = error.name or "torch"
        raise MissingPackage(function="seed", package=package, extra="torch") from error
    cases = seed_cases(options.target, tuple(options.cases))
    if not cases:
        raise BlockbusterError(message="seed: no case has one of these words; --list prints all")
    if options.list:
        print("\n".join(case.name for case in cases))
        return
    if options.threads is not None and options.target != "cpu":
        raise BlockbusterError(message="seed: --threads is for a CPU alone")
    if options.processes > 1 and options.target == "cpu":
        sentence = "seed: --processes is for a GPU alone: on a CPU they would slow each other down"
        raise BlockbusterError(message=sentence)
    check_writable(options.file)
    before: Any = read_json(str(options.file)) if options.file.exists() else None
    with _database_of(options.file):
        effort = (options.seconds, options.threads)
        own = {"processes": options.processes, "before": before, "tell": _tell}
        keep = partial(_write, options.file)
        made = tuned_seed(cases, options.target, *effort, **own, keep=keep)
        _write(options.file, made)
    print(f"written: {options.file}, {len(made['records'])} kernels; {made['about']}")


def _write(file: Path, made: dict[str, Any]) -> None:
    """Writes a seed at once: a kill loses nothing."""
    part = file.with_name(f".{file.name}-{os.getpid()}")
    part.write_text(json.dumps(made, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(file)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _database_of(file: Path) -> Iterator[None]:
    """Measurements go to a file beside another one, which is removed at the end."""
    beside = file.absolute().with_name(f"{file.name}.sqlite3")
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(beside)
    try:
        yield
        database().close()
        for name in (
            beside.name,
            f"{beside.name}-wal",
            f"{beside.name}-shm",
            f".{beside.name}.lock",
        ):
            beside.with_name(name).unlink(missing_ok=True)
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


COMMAND = Command(
    "seed", "the speeds of common kernels, as a file for others", _run, _add_options, EPILOG
)
