"""The command line: `blockbuster trace attention`."""

import argparse
import difflib
import sys
from collections.abc import Sequence

from blockbuster_fusion.cli import (
    bench,
    cache,
    check,
    database,
    demo,
    emit,
    explain,
    explore,
    fuse,
    list,
    machine,
    mathematics,
    passes,
    plan,
    seed,
    show,
    table,
    trace,
    tune,
)
from blockbuster_fusion.cli.options import Parser
from blockbuster_fusion.errors import BlockbusterError, UnknownExample
from blockbuster_fusion.messages import INTERRUPTED, complain, prefixed_messages
from blockbuster_fusion.tools import examples
from blockbuster_fusion.version import __version__

COMMANDS = tuple(
    module.COMMAND
    for module in (
        *(trace, fuse, explore, check, show, passes, plan, explain, emit, bench, tune, demo),
        *(table, machine, mathematics, database, seed, cache, list),
    )
)
"""The commands, in the order of `blockbuster --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    with prefixed_messages() as interruption:
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # `blockbuster … | head` is no error
            sys.stderr.close()
            return 0
        except Exception as error:
            if interruption.happened:  # Ctrl-C may surface as another error
                return INTERRUPTED
            sentence = _sentence(error)
            if sentence is None:
                raise
            complain(sentence)
            return 1


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.print_help()
        return 2
    options.run(options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="blockbuster", description="Operator fusion for AI inference, at the level of blocks."
    )
    parser.add_argument("--version", action="version", version=f"blockbuster {__version__}")
    parser.set_defaults(run=None)
    parsers = parser.add_subparsers(metavar="command")
    for command in COMMANDS:
        added = parsers.add_parser(
            command.name,
            help=command.summary,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_options(added)
        added.set_defaults(run=command.run)
    return parser


def _sentence(error: Exception) -> str | None:
    """The message for an error that a user can mend; None for a defect of the package."""
    match error:
        case UnknownExample():
            return _suggestion(str(error.name)) or str(error)
        case BlockbusterError():
            return str(error)
        case OSError():
            return f"{error.filename}: {error.strerror}" if error.filename else str(error)
        case MemoryError():
            return "there is not enough memory for these sizes: choose smaller ones"
    return None


def _suggestion(name: str) -> str | None:
    """The message for a name that is nearly an example's."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), examples.EXAMPLES, 1)
    return f"unknown example {name!r}: did you mean {near[0]}?" if near else None


if __name__ == "__main__":
    sys.exit(main())
