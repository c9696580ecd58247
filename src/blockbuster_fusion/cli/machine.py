"""`blockbuster machine`: prints the figures of a machine, and measures this CPU."""

import argparse

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.runtime.machines import machine_named, this_cpu

SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _add_options(parser: argparse.ArgumentParser) -> None:
    text = "a machine that comes with the package (h200, h100, a100), or a .toml or .json file"
    parser.add_argument("name", nargs="?", help=f"{text}; without it, this CPU")
    parser.add_argument(
        "--measure", action="store_true", help="measure this CPU again, and keep it"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="so many of its cores")
    parser.add_argument(
        "--json", action="store_true", help="print it as JSON, to be kept or changed"
    )


def _run(options: argparse.Namespace) -> None:
    if options.name and (options.measure or options.threads is not None):
        raise BlockbusterError(message="machine: --measure and --threads are for this CPU alone")
    if options.threads is not None and options.threads < 1:
        raise BlockbusterError(message=f"machine: --threads is {options.threads}; give 1 or more")
    if options.name:
        machine = machine_named(options.name)
    else:
        machine = this_cpu(options.threads, measure=options.measure)
    print(machine.to_json() if options.json else table(machine), end="")


def table(machine: Machine) -> str:
    """A machine as lines for people."""
    lines = [f"{machine.name} ({machine.source})"]
    lines.append(f"processors: {machine.processors}, full with {machine.full} programs")
    for memory in machine.memories:
        whose = "shared" if memory.shared else "of each processor"
        lines.append(
            f"  {memory.name:8} {_bytes(memory.size):>9} {whose:18} "
            f"{_scaled(memory.each)}B/s for one, {_scaled(memory.total)}B/s for all"
        )
    for key, rate in machine.rates.items():
        every = rate * machine.processors
        lines.append(f"  {key:16} {_scaled(rate)}FLOP/s for one, {_scaled(every)}FLOP/s for all")
    lines.append(
        f"a kernel costs the host {machine.launch * 1e6:.2f} µs and the device "
        f"{machine.step * 1e6:.2f} µs; all processors start in {machine.wake * 1e6:.2f} µs"
    )
    return "\n".join(lines) + "\n"


def _scaled(number: float) -> str:
    for scale, unit in SCALES:
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.3g} "


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


COMMAND = Command(
    "machine",
    "the machine that kernels are chosen for: processors, memories, rates",
    _run,
    _add_options,
    epilog=None,
)
