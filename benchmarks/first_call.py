"""The first call of a compiled Llama with empty caches: its seconds, and the kernels it compiles.

    python benchmarks/first_call.py [--backend blockbuster inductor] [--words 2048] [--layers 4]

The model has the shape of Llama 3.2 1B with a few layers, in bfloat16. Each backend runs in a
process of its own, with caches that are empty. Kernels that the main thread compiles are told
apart: nothing else is done meanwhile. So are those that no later call launches. The main thread is
looked at every few milliseconds, so that its time is divided into stages.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CACHES = ("BLOCKBUSTER_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
STAGES = {
    ("library.py", "_timed"): "times of PyTorch's operators",
    ("part_choices.py", "searched"): "search of schedules",
    ("estimates.py", "_chosen"): "search of schedules",
    ("choose.py", "choose"): "selection",
    ("compile_graph.py", "prepared"): "graph made ready",
    ("compile_parts.py", "try_out"): "kernels run once",
    ("compile_parts.py", "compiled"): "kernels compiled",
    ("corrections.py", "checked"): "kernels measured",
    ("compile_graph.py", "compiled"): "plan made",
    ("whole_model.py", "faster"): "whole model timed",
    ("gpu_tape.py", "*"): "tape made and called",
    ("plan.py", "__call__"): "tape made and called",
    ("backend.py", "compiled"): "captured by AOTAutograd",
    ("first_call.py", "measured"): "captured by Dynamo, and the rest",
}
"""The stages of a first call, by file and function: the innermost one counts."""
EVERY = 0.004
"""The seconds between looks at the main thread."""


class Stages(threading.Thread):
    """Notes what the main thread does, until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds = Counter[str]()
        self.ends = threading.Event()

    def run(self) -> None:
        main, before = threading.main_thread().ident, time.perf_counter()
        while not self.ends.wait(EVERY):
            frame, now = sys._current_frames().get(main or 0), time.perf_counter()
            self.seconds[stage_of(frame)] += now - before
            before = now

    def stop(self) -> str:
        """Stops, and tells the seconds of all stages."""
        self.ends.set()
        self.join()
        found = (f"{name} {seconds:.2f}" for name, seconds in self.seconds.most_common())
        return ", ".join(found)


def stage_of(frame: FrameType | None) -> str:
    """The stage of the innermost function that has one."""
    while frame is not None:
        file, name = Path(frame.f_code.co_filename).name, frame.f_code.co_name
        stage = STAGES.get((file, name)) or STAGES.get((file, "*"))
        if stage is not None:
            return stage
        frame = frame.f_back
    return "other"


def measured(backend: str, layers: int, rows: int, words: int, device: str) -> str:
    """A sentence about the first call."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    import torch
    import triton
    from llama_shapes import LLAMA_1B, call_of, runnable

    import blockbuster_fusion as bb

    bb.register_backend()
    made: list[tuple[str, bool, float]] = []

    def note(*, src: Any, metadata: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            is_main = threading.current_thread() is threading.main_thread()
            made.append((metadata.get("name", "?"), is_main, times.total / 1e6))

    triton.knobs.compilation.listener = note
    model = runnable(layers, LLAMA_1B, device)
    given = call_of(model, LLAMA_1B, rows, words)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    with torch.no_grad():
        model(*given)  # what PyTorch and its libraries start is not counted
        stages, start = Stages(), time.perf_counter()
        stages.start()
        compiled(*given)
        if device == "cuda":
            torch.cuda.synchronize()
        spent, told = time.perf_counter() - start, stages.stop()
        used = launched(lambda: compiled(*given)) if device == "cuda" else set[str]()
    first = [seconds for _, is_main, seconds in made if is_main]
    rest = [seconds for _, is_main, seconds in made if not is_main]
    unused = sorted({name for name, _, _ in made} - used)
    return (
        f"{backend}: first call {spent:.1f} s; {len(first)} kernels compiled by the main thread in"
        f" {sum(first):.1f} s, {len(rest)} by others in {sum(rest):.1f} s; not launched later:"
        f" {', '.join(unused) or 'none'}\n    seconds of the main thread: {told}"
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
