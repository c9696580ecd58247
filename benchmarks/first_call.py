"""The first call of a compiled Llama with empty caches: its seconds, and the kernels it compiles.

    python benchmarks/first_call.py [--backend blockbuster inductor] [--words 2048] [--layers 4]

The model has the shape of Llama 3.2 1B with a few layers, in bfloat16. Each backend runs in a
process of its own, with caches that are empty. Kernels that the main thread compiles are told
apart: nothing else is done meanwhile. So are those that no later call launches.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHAPE = {"width": 2048, "heads": 32, "groups": 8, "inner": 8192, "vocabulary": 128256}
CACHES = ("BLOCKBUSTER_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def measured(backend: str, layers: int, rows: int, words: int, device: str) -> str:
    """A sentence about the first call."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    import torch
    import triton
    from llama_shapes import Llama

    import blockbuster_fusion as bb

    bb.register_backend()
    made: list[tuple[str, bool, float]] = []

    def note(*, src: Any, metadata: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            is_main = threading.current_thread() is threading.main_thread()
            made.append((metadata.get("name", "?"), is_main, times.total / 1e6))

    triton.knobs.compilation.listener = note
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Llama(layers, **SHAPE).to(device, dtype).eval().requires_grad_(False)
    given: tuple[Any, ...] = (torch.zeros(1, words, dtype=torch.long), torch.arange(words))
    if not words:
        shape = (rows, SHAPE["groups"], 1024, SHAPE["width"] // SHAPE["heads"])
        caches = [
            tuple(torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
            for _ in range(layers)
        ]
        for cache in (x for pair in caches for x in pair):
            torch._dynamo.mark_static_address(cache)
        given = (torch.zeros(rows, 1, dtype=torch.long), torch.tensor([700]), caches)
    given = (given[0].to(device), given[1].to(device), *given[2:])
    compiled = torch.compile(model, backend=backend, dynamic=False)
    with torch.no_grad():
        model(*given)  # what PyTorch and its libraries start is not counted
        start = time.perf_counter()
        compiled(*given)
        if device == "cuda":
            torch.cuda.synchronize()
        spent = time.perf_counter() - start
        used = launched(lambda: compiled(*given)) if device == "cuda" else set[str]()
    first = [seconds for _, is_main, seconds in made if is_main]
    rest = [seconds for _, is_main, seconds in made if not is_main]
    unused = sorted({name for name, _, _ in made} - used)
    return (
        f"{backend}: first call {spent:.1f} s; {len(first)} kernels compiled by the main thread in"
        f" {sum(first):.1f} s, {len(rest)} by others in {sum(rest):.1f} s; not launched later:"
        f" {', '.join(unused) or 'none'}"
    )


def launched(call: Any) -> set[str]:
    """The names of the kernels that a call runs on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
    return {event.key for event in found.key_averages()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", default=["blockbuster", "inductor"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1, help="texts of which one word is decoded")
    parser.add_argument("--words", type=int, default=0, help="the words of a prompt; 0: decode")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.one:
        print(measured(o.backend[0], o.layers, o.rows, o.words, o.device))
        return
    rest = ["--layers", str(o.layers), "--rows", str(o.rows), "--words", str(o.words)]
    for backend in o.backend:
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {name: f"{folder}/{name.lower()}" for name in CACHES}
            command = [sys.executable, __file__, "--one", "--backend", backend, *rest]
            subprocess.run([*command, "--device", o.device], env=environment, check=True)


if __name__ == "__main__":
    main()
