"""Milliseconds of a Llama's steps, against eager mode and Inductor, with and without CUDA graphs.

    python benchmarks/llama.py --save benchmarks/results/llama_h200.json   # on a GPU: a minute
    python benchmarks/llama.py --device cpu --small --work decode1 prefill128
    python benchmarks/llama.py --work prefill2048 --kernels   # and where their time goes

The model has the shape of Llama 3.2 1B with a few layers, in bfloat16 on a GPU and float32 on a
CPU. "decode16" is one new word of 16 texts, with a static cache; "prefill2048" reads 2048 words.
All contenders are compiled first, and then run in turns. One that fails, or whose error against
float64 is more than twice that of eager mode, before or after the rounds, makes the exit status 1.
"""

import argparse
import copy
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from llama_shapes import LLAMA_1B, SMALL, Llama, call_of, runnable
from never_slower.kept import all_versions, machine

import blockbuster_fusion as bb

WORK = ("decode1", "decode16", "prefill2048")
GRAPHS = "reduce-overhead"
CONTENDERS = {
    "cuda": ("eager", "inductor", f"inductor {GRAPHS}", "blockbuster", f"blockbuster {GRAPHS}"),
    "cpu": ("eager", "inductor", "blockbuster"),
}
PROFILED = 5
"""The calls of which --kernels tells the mean."""
NAME = 90
"""The letters of a kernel's name that are shown."""
WARM = 5
"""The rounds before the first that counts."""

Call = Callable[[], Any]


def compiled(model: Llama, name: str) -> Callable[..., Any]:
    """A contender: the model, compiled by a backend in a mode."""
    backend, _, mode = name.partition(" ")
    if backend == "eager":
        return model
    made: Callable[..., Any] = torch.compile(
        model, backend=backend, mode=mode or None, dynamic=False
    )
    return made


def timed(calls: Mapping[str, Call], rounds: int, device: str) -> dict[str, float]:
    """The median milliseconds of each call; they run in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(WARM + rounds):
        for name, call in calls.items():
            torch.compiler.cudagraph_mark_step_begin()
            spent = on_gpu(call) if device == "cuda" else on_cpu(call)
            times[name] += [spent] if number >= WARM else []
    return {name: statistics.median(own) for name, own in times.items()}


def on_gpu(call: Call) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def on_cpu(call: Call) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def kernels_of(call: Call) -> str:
    """The kernels of a call on a GPU, those that take longest first; a call is a mean of some."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED):
            torch.compiler.cudagraph_mark_step_begin()
            call()
        torch.cuda.synchronize()
    events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    rows = [
        f"{event.self_device_time_total / PROFILED:9.1f} µs in {event.count / PROFILED:5.1f}"
        f" kernels: {event.key[:NAME]}"
        for event in events
    ]
    return "\n".join(rows)


def measured(model: Llama, exact: Llama, work: str, o: argparse.Namespace) -> dict[str, float]:
    """The milliseconds of all contenders that are right."""
    torch._dynamo.reset()
    shape, is_decoding = o.shape, work.startswith("decode")
    count = int(work.removeprefix("decode").removeprefix("prefill"))
    given = call_of(model, shape, count if is_decoding else 1, 0 if is_decoding else count)
    wide = [[tuple(x.double() for x in pair) for pair in given[2]]] if is_decoding else []
    truth = exact(*given[:2], *wide)

    def error(result: torch.Tensor) -> float:
        return float((result.double() - truth).norm() / truth.norm())

    own, calls = error(model(*given)), dict[str, Call]()

    def is_right(name: str, when: str) -> bool:
        found = error(calls[name]())
        print(f"{work}, {name}, {when}: {found / own:.2f} of eager's error", flush=True)
        return found <= 2 * own + 1e-7

    for name in CONTENDERS[o.device]:
        call, start = compiled(model, name), time.perf_counter()
        calls[name] = lambda call=call: call(*given)
        try:
            if not is_right(name, "at first"):
                print(f"{work}, {name}: WRONG", flush=True)
                del calls[name]
        except Exception:  # whatever it is: the others are measured
            print(f"{work}, {name}: FAILED, {traceback.format_exc()[-1200:]}", flush=True)
            del calls[name]
        print(f"{work}, {name}: first call {time.perf_counter() - start:.1f} s", flush=True)
    found = timed(calls, o.rounds, o.device)
    if o.kernels:
        for name, call in calls.items():
            print(f"{work}, {name}:\n{kernels_of(call)}", flush=True)
    return {name: ms for name, ms in found.items() if is_right(name, "at last")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=CONTENDERS, default="cuda")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="a narrower model, for a CPU")
    parser.add_argument("--work", nargs="+", default=WORK, metavar="STEP")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kernels", action="store_true", help="tell where the time of a GPU goes")
    parser.add_argument("--save", type=Path, metavar="FILE", help="other figures there stay")
    o = parser.parse_args()
    if o.kernels and o.device != "cuda":
        parser.error("--kernels is for a GPU alone")
    o.shape = SMALL if o.small else LLAMA_1B
    bb.register_backend()
    found: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        model = runnable(o.layers, o.shape, o.device)
        exact = copy.deepcopy(model).double()
        for work in o.work:
            found[work] = measured(model, exact, work, o)
            others = [ms for name, ms in found[work].items() if "blockbuster" not in name]
            for name, ms in found[work].items():
                best = f"{min(others) / ms:.2f} of the best other" if others else ""
                print(f"{work:12s} {name:28s} {ms:9.3f} ms  {best}", flush=True)
    if o.save is not None:
        kept: dict[str, Any] = json.loads(o.save.read_text()) if o.save.exists() else {}
        stamp = {"date": str(date.today()), "machine": machine(o.device)}
        stamp |= {"versions": all_versions()}
        runs = {**kept.get("runs", {}), **dict.fromkeys(found, stamp)}
        times = {**kept.get("milliseconds", {}), **found}
        o.save.write_text(
            json.dumps({**kept, "milliseconds": times, "runs": runs}, indent=1) + "\n"
        )
    sys.exit(any(len(own) < len(CONTENDERS[o.device]) for own in found.values()))


if __name__ == "__main__":
    main()
