"""Times collectives on the ranks of this machine: the figures of a link, and its predictions.

    torchrun --nproc-per-node 2 benchmarks/collectives.py [--device cpu|cuda]

Prints the seconds of each collective for arrays of several sizes, with the prediction of the
machine's link (machine/link.py), and the latency and the rate that fit best.
"""

import argparse
import statistics
import time

import torch
from torch import distributed

from blockbuster_fusion.torch.rivals.collective_times import link_of

functional = torch.ops._c10d_functional
SIZES = tuple(1 << power for power in range(10, 26, 3))
PASSES = {"all_reduce": 2, "all_gather_into_tensor": 1, "reduce_scatter_tensor": 1}


def measured(name: str, size: int, device: torch.device, rounds: int = 30) -> float:
    """The least seconds of a collective over an array of that many bytes."""
    ranks, group = distributed.get_world_size(), distributed.group.WORLD.group_name
    count = size // 4 // (ranks if name == "all_gather_into_tensor" else 1)
    x = torch.ones(count, device=device)
    rest = {
        "all_reduce": ("sum",),
        "all_gather_into_tensor": (ranks,),
        "reduce_scatter_tensor": ("sum", ranks),
    }[name]
    spent = []
    for number in range(rounds + 3):
        distributed.barrier()
        start = time.perf_counter()
        functional.wait_tensor(getattr(functional, name)(x, *rest, group))
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= 3:
            spent.append(time.perf_counter() - start)
    return min(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    kind = parser.parse_args().device
    distributed.init_process_group("gloo" if kind == "cpu" else "nccl")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    link, share = link_of(kind), (ranks - 1) / ranks
    short, rates = [], []
    for name, passes in PASSES.items():
        for size in SIZES:
            seconds = measured(name, size, device)
            if size == SIZES[0]:
                short.append(seconds)
            if size == SIZES[-1]:
                rates.append(passes * size * share / (seconds - short[-1]))
            if rank == 0:
                told = "no link" if link is None else f"{link.seconds(name, size, ranks):.3g} s"
                print(f"{name:24s} {size:9d} bytes  {seconds:.3g} s  predicted {told}", flush=True)
    if rank == 0:
        best = statistics.median(short), statistics.median(rates)
        print(f"latency {best[0]:.3g} s, rate {best[1]:.3g} bytes/s over {ranks} ranks")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
