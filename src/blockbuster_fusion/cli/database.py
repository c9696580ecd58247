"""`blockbuster database`: prints what is known about speeds of kernels, and moves it around."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.errors import BadRecord, BlockbusterError
from blockbuster_fusion.runtime.tuning_database import VARIABLE, TuningDatabase, database


def _add_options(parser: argparse.ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--export", metavar="FILE", help="write all measurements as JSON")
    text = "take over the measurements of a file that --export wrote, if they are new or newer"
    one.add_argument("--import", metavar="FILE", dest="source", help=text)
    one.add_argument("--clear", action="store_true", help="remove all measurements")


def _run(options: argparse.Namespace) -> None:
    found = database()
    if found.path is None:
        problem = f"there is no file for measurements; name one in {VARIABLE}"
        raise BlockbusterError(message=f"database: {problem}")
    if options.export is not None:
        Path(options.export).write_text(found.to_json(), encoding="utf-8")
        print(f"written:        {options.export}")
    if options.source is not None:
        print(
            f"taken over:     {found.merge(read_json(options.source), options.source)} measurements"
        )
    if options.clear:
        print(f"removed:        {found.clear()} measurements")
    _print(found)


def read_json(file: str) -> object:
    """The content of a JSON file."""
    try:
        return json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRecord(place=file, problem=f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadRecord(place=file, problem=f"is no JSON: {error}") from None


def _print(found: TuningDatabase) -> None:
    keys = found.keys()
    print(f"file:           {found.path} ({VARIABLE} names another)")
    print(f"kernels:        {len(keys)}")
    print(f"configurations: {found.count()}")
    print(f"library times:  {len(found.libraries())}")
    print(f"machines:       {_listed(key.machine for key in keys)}")
    print(f"generators:     {_listed(key.generator for key in keys)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"


COMMAND = Command(
    "database",
    "the measured speeds of kernels that are kept: how many, of which machines",
    _run,
    _add_options,
    epilog=None,
)
