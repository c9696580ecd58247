"""What torch.compile(backend="blockbuster") costs beside its kernels: a call, and compiling.

    python benchmarks/torch_calls.py [--save benchmarks/results/torch_calls.json] [--no-inductor]
                                     [--only calls growing compiling]

A Llama with random weights, float32. Calls: two layers, hidden size 64, one token, so that kernels
take next to no time; eager, Inductor and Blockbuster are called in turns in one process. Growing:
the same model with a DynamicCache that grows by a word at each call, from 8 to 200. Compiling:
2 and 32 layers of hidden size 256, each in a process of its own, with an empty cache of kernels and
once more with what that left; PyTorch's own share is what its backend "aot_eager" takes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import torch

from blockbuster_fusion.tools.bench import versions

os.environ.setdefault("BLOCKBUSTER_LIBRARY", "never")  # kernels are measured, faster or not

ROUNDS, WARM = 300, 20
GROWN = range(8, 200)


def llama(layers: int, hidden: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def inputs(length: int) -> dict[str, object]:
    return {"input_ids": torch.arange(length)[None] % 128, "use_cache": False}


# ---------------------------------------------------------------- calls


def calls(with_inductor: bool) -> dict[str, object]:
    """The median CPU time of a call, in microseconds."""
    torch.set_num_threads(1)
    model, given = llama(2, 64), inputs(1)
    contenders: dict[str, Callable[..., object]] = {"eager": model}
    for backend in ("blockbuster", *(("inductor",) if with_inductor else ())):
        contenders[backend] = torch.compile(model, backend=backend, dynamic=False)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.no_grad():
        for number in range(WARM + ROUNDS):
            for name, call in contenders.items():
                start = time.process_time()
                call(**given)
                if number >= WARM:
                    times[name].append(time.process_time() - start)
    return compared(times)


def growing(with_inductor: bool) -> dict[str, object]:
    """The median CPU time of a word while a cache grows, in microseconds."""
    from transformers import DynamicCache

    torch.set_num_threads(1)
    model, word = llama(2, 64), torch.tensor([[5]])
    contenders: dict[str, Callable[..., object]] = {"eager": model}
    for backend in ("blockbuster", *(("inductor",) if with_inductor else ())):
        contenders[backend] = torch.compile(model, backend=backend, dynamic=True)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.no_grad():
        for _ in range(2):  # what is compiled in the first round is measured in the second
            times = {name: [] for name in contenders}
            caches = {name: DynamicCache() for name in contenders}
            for name, call in contenders.items():
                call(input_ids=torch.arange(GROWN.start)[None], past_key_values=caches[name])
            for _ in GROWN:
                for name, call in contenders.items():
                    start = time.process_time()
                    call(input_ids=word, past_key_values=caches[name])
                    times[name].append(time.process_time() - start)
    return compared(times)


def compared(times: Mapping[str, list[float]]) -> dict[str, object]:
    medians = {name: 1e6 * statistics.median(t) for name, t in times.items()}
    ratios = {name: medians["eager"] / m for name, m in medians.items()}
    return {"microseconds": medians, "times_as_fast_as_eager": ratios}


# ---------------------------------------------------------------- compiling


def compile_time(layers: int, backend: str) -> float:
    """The seconds that the first call takes."""
    model, given = llama(layers, 256), inputs(32)
    with torch.no_grad():
        model(**given)
        compiled = torch.compile(model, backend=backend)
        start = time.perf_counter()
        compiled(**given)
        return time.perf_counter() - start


def in_a_process(layers: int, backend: str, environment: Mapping[str, str]) -> float:
    command = [sys.executable, __file__, "--measure", str(layers), backend]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def compiling(with_inductor: bool) -> list[dict[str, object]]:
    """For each number of layers: seconds of the first call, with empty and with full caches."""
    made: list[dict[str, object]] = []
    for layers in (2, 32):
        with tempfile.TemporaryDirectory() as folder:
            caches = {"BLOCKBUSTER_CACHE": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            row: dict[str, object] = {"layers": layers}
            row["aot_eager"] = in_a_process(layers, "aot_eager", caches)
            for backend in ("blockbuster", *(("inductor",) if with_inductor else ())):
                row[f"{backend}, empty cache"] = in_a_process(layers, backend, caches)
                row[f"{backend}, full cache"] = in_a_process(layers, backend, caches)
            print(row, flush=True)
            made.append(row)
    return made


PARTS: dict[str, Callable[[bool], object]] = {
    "calls": calls,
    "growing": growing,
    "compiling": compiling,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="some parts")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        layers, backend = options.measure
        print(compile_time(int(layers), backend))
        return
    for name in options.only:
        found = PARTS[name](not options.no_inductor)
        print(name, found, flush=True)
        if options.save:  # other parts stay as they were
            kept = json.loads(options.save.read_text()) if options.save.exists() else {}
            kept |= {"date": str(date.today()), "versions": versions(), name: found}
            options.save.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
