"""Times a sharded Llama layer on the ranks of this machine, and explains it from the first one.

    torchrun --nproc-per-node 2 benchmarks/tensor_parallel.py [--device cuda] [--width 2048]

Heads and the inner width are sharded over all ranks. Every rank compiles and calls the layer as
often as the others. Contenders run in turns; the figures are medians of the first rank. Errors are
against the whole layer in float64, relative and in norm.
"""

import argparse
import copy
import statistics
import time

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import blockbuster_fusion as bb


class Layer(nn.Module):
    """Attention with grouped heads and a gated perceptron, each behind an RMSNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size, inner = width // heads, 4 * width
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        shapes = {"q": (width, width), "k": (width, width // 2), "v": (width, width // 2)}
        shapes |= {"o": (width, width), "gate": (width, inner), "up": (width, inner)}
        for name, shape in {**shapes, "down": (inner, width)}.items():
            setattr(self, name, nn.Linear(*shape, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        h, shape = self.n1(x), (*x.shape[:2], -1, self.size)
        q, k, v = (f(h).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    distributed.init_process_group("gloo" if given.device == "cpu" else "nccl")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda", rank) if given.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    layer = Layer(given.width, given.width // 64).to(device, dtype).eval().requires_grad_(False)
    x = torch.randn(1, given.rows, given.width, device=device, dtype=dtype)
    bb.register_backend()
    with torch.no_grad():
        truth = copy.deepcopy(layer).double()(x.double())
        wide = dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseParallel())
        mesh = init_device_mesh(given.device, (ranks,))
        parallelize_module(layer, mesh, {**wide, "o": RowwiseParallel(), "down": RowwiseParallel()})
        calls = {"eager": layer, "blockbuster": torch.compile(layer, backend="blockbuster")}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(given.rounds + 5):
            for name, call in calls.items():
                distributed.barrier()
                start = time.perf_counter()
                made = call(x)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if number >= 5:
                    times[name].append(time.perf_counter() - start)
                elif rank == 0 and number == 4:
                    error = (made.double() - truth).norm() / truth.norm()
                    print(f"{name}: error {error:.3g}")
        if rank == 0:
            for name, spent in times.items():
                print(f"{name}: {statistics.median(spent) * 1e6:.4g} µs on {ranks} ranks")
            print(bb.explain(layer, x))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
