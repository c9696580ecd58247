"""`blockbuster demo`: fuses, compiles, checks and times three programs."""

import argparse

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.tools.bench import demo


def _run(options: argparse.Namespace) -> None:
    for text in demo():
        print(text, flush=True)


COMMAND = Command("demo", "three programs fused, compiled, checked and timed", _run, epilog=None)
