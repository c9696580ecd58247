"""`blockbuster table`: prints the buffered edges that are left, for every example."""

import argparse

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.cli.options import add_rules
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.safety.fuse import fuse
from blockbuster_fusion.tools import examples


def _run(options: argparse.Namespace) -> None:
    width = max(len(name) for name in examples.EXAMPLES)
    print(f"{'program':{width}}  operators  initial  interior buffered edges per snapshot  steps")
    for name in examples.EXAMPLES:
        program = examples.find(name)
        fusion = fuse(lower(program), options.rules)
        edges = ", ".join(str(len(buffered(snapshot))) for snapshot in fusion.fused)
        initial = len(buffered(fusion.initial))
        count, steps = len(program.operators), len(fusion.trace)
        print(f"{name:{width}}  {count:9}  {initial:7}  {edges:37}  {steps:5}")


COMMAND = Command(
    "table", "buffered edges that are left, for every example", _run, add_rules, epilog=None
)
