"""`blockbuster demo`: fuses, compiles, checks and times three programs, and writes their pages."""

import argparse
from pathlib import Path

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.explorer.exploration import explore_program
from blockbuster_fusion.tools import examples
from blockbuster_fusion.tools.bench import DEMO, demo

FOLDER = Path("build/explorer")


def _add_options(parser: argparse.ArgumentParser) -> None:
    text = "where the pages of the explorer are written (default: %(default)s)"
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, metavar="FOLDER", help=text)


def _run(options: argparse.Namespace) -> None:
    for text in demo():
        print(text, flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    print("Every step, from the program to its kernels; open these pages in a browser:")
    for name, sizes in DEMO.items():
        made = explore_program(examples.find(name), sizes=sizes, note=examples.about(name))
        page = made.save(options.output / f"{name}.html")
        print(f"    {page.absolute()}", flush=True)


COMMAND = Command(
    "demo", "three programs fused, compiled, checked and timed", _run, _add_options, epilog=None
)
