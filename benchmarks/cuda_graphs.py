"""Times of calls on a GPU, replayed from CUDA graphs, so that the host takes no part."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

ROUNDS = 9


def graph_of(calls: Sequence[Callable[[], Any]], milliseconds: float) -> tuple[Any, int]:
    """A CUDA graph of the calls in turn, as often as fills some time, and how many they are.

    The results of one turn are kept until the next, so each call writes to memory of its own.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    results = deque[Any](maxlen=len(calls))
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for call in calls:
            call()
        end.record()
        torch.cuda.synchronize()
        once = begin.elapsed_time(end) / len(calls)
        count = int(min(100, max(1, milliseconds / max(once, 1e-3) / len(calls)))) * len(calls)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(count):
                results.append(calls[i % len(calls)]())
    torch.cuda.synchronize()
    return graph, count


def interleaved(
    rivals: Mapping[str, Sequence[Callable[[], Any]]],
    milliseconds: float = 2.0,
    seconds: float = 0.0,
) -> dict[str, float]:
    """Microseconds a call of each, as medians over rounds that go through all of them.

    `milliseconds` are those of a replay; rounds go on for some seconds.
    """
    graphs = {}
    for name, calls in rivals.items():
        try:
            graphs[name] = graph_of(calls, milliseconds)
        except Exception as error:
            print(f"    {name}: left out, {str(error)[:120]}", flush=True)
            torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    start, rounds = time.perf_counter(), 0
    while graphs and (rounds < ROUNDS or time.perf_counter() - start < seconds):
        rounds += 1
        for name, (graph, count) in graphs.items():
            graph.replay()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) / count * 1e3)
    return {name: median(found) for name, found in times.items()}
