"""`blockbuster list`: prints the examples."""

import argparse

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.tools import examples


def _run(options: argparse.Namespace) -> None:
    width = max(len(name) for name in examples.EXAMPLES)
    for name, function in examples.EXAMPLES.items():
        summary = (function.__doc__ or "").strip().splitlines()[0]
        print(f"{name:{width}}  {summary}")


COMMAND = Command("list", "the examples", _run, epilog=None)
