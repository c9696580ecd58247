"""The form of a command: a name, its options, and the function that runs it."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from blockbuster_fusion.cli.options import FUNCTION


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `blockbuster`: each has a file of its own in this folder."""

    name: str
    summary: str
    """One line for `blockbuster --help`."""
    run: Callable[[argparse.Namespace], None]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    epilog: str | None = FUNCTION
    """Text below the options; None for a command that takes no program."""
