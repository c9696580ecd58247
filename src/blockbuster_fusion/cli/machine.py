"""`blockbuster machine`: prints the figures of a machine, and measures this CPU or GPU."""

import argparse

from blockbuster_fusion.cli.command import Command
from blockbuster_fusion.errors import BlockbusterError, MissingPackage
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.runtime.machines import machine_named, this_cpu

HERE = ("cpu", "cuda")
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _add_options(parser: argparse.ArgumentParser) -> None:
    text = "cpu or cuda, the machine at hand; one that comes with the package (h200, h100, a100)"
    parser.add_argument("name", nargs="?", default="cpu", help=f"{text}; a .toml or .json file")
    text = "measure this CPU or GPU again, and keep it"
    parser.add_argument("--measure", action="store_true", help=text)
    text = "so many threads of this CPU (default: one for each core)"
    parser.add_argument("--threads", type=int, metavar="N", help=text)
    parser.add_argument(
        "--json", action="store_true", help="print it as JSON, to be kept or changed"
    )


def _run(options: argparse.Namespace) -> None:
    if options.measure and options.name not in HERE:
        raise BlockbusterError(message="machine: --measure is for this CPU or GPU alone")
    if options.threads is not None and options.name != "cpu":
        raise BlockbusterError(message="machine: --threads is for this CPU alone")
    if options.name == "cpu":
        machine = this_cpu(options.threads, measure=options.measure)
    elif options.name == "cuda":
        machine = _gpu(measure=options.measure)
    else:
        machine = machine_named(options.name)
    print(machine.to_json() if options.json else table(machine), end="")


def _gpu(*, measure: bool) -> Machine:
    """The GPU at hand: as the package knows it or, to `measure`, as it is measured now."""
    try:
        import blockbuster_fusion.torch.machines as machines
    except ImportError as error:
        package = error.name or "torch"
        raise MissingPackage(function="machine cuda", package=package, extra="torch") from error
    known = None if measure else machines.known_gpu(machines.gpu_name())
    return known or machines.this_gpu(measure=measure)


def table(machine: Machine) -> str:
    """A machine as lines for people."""
    lines = [f"{machine.name} ({machine.source})"]
    has = f", {machine.instructions}" if machine.instructions else ""
    lines.append(f"processors: {machine.processors}{has}, full with {machine.full} programs")
    for memory in machine.memories:
        whose = "shared" if memory.shared else "of each processor"
        lines.append(
            f"  {memory.name:8} {_bytes(memory.size):>9} {whose:18} "
            f"{_scaled(memory.each)}B/s for one, {_scaled(memory.total)}B/s for all"
        )
    for key, rate in machine.rates.items():
        every = rate * machine.processors
        lines.append(f"  {key:16} {_scaled(rate)}FLOP/s for one, {_scaled(every)}FLOP/s for all")
    if machine.link is not None:
        link = machine.link
        cost = f"{_scaled(link.rate)}B/s, {link.latency * 1e6:.3g} µs for a collective"
        lines.append(f"  {link.name} to other ranks: {cost} ({link.source})")
    lines.append(
        f"a kernel costs the host {machine.launch * 1e6:.2f} µs and the device "
        f"{machine.step * 1e6:.2f} µs; all processors start in {machine.wake * 1e6:.2f} µs"
    )
    if machine.early:
        lines.append(f"kernels that start early save {machine.early * 1e6:.2f} µs each")
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
