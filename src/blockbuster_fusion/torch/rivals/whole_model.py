"""Times a compiled model as a whole against the captured one, and gives up what loses.

Parts are weighed one by one, and by predictions if they are not tuned. A model may still be slower
as a whole: calls between parts cost, and caches are shared. So the compiled model and the captured
one run in turns, with the inputs of the call that is being compiled. If the captured one is faster,
it runs. When a model is tuned, the parts are given up one kind at a time first.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import GraphModule

from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.torch.compile_graph import CompiledGraph
from blockbuster_fusion.torch.rivals.choose import ALL

SECONDS = 0.4
"""The time in which a compiled model is compared with the captured one, beside first calls."""
TUNED_SECONDS = 2.0
"""The same for each kind of part of a model that is tuned."""
FEWEST, MOST = 3, 25
"""The numbers of rounds."""
FIRST = 4
"""The calls before the first sample: they compile, and capture CUDA graphs."""
SAMPLE = 2e-3
"""The least seconds of a sample; shorter calls are repeated in it."""
FASTER = 1.01
"""The factor by which the captured model must be faster to be run."""
MOST_KINDS = 8
"""The most kinds of parts that are given up one at a time."""
PURE = ("aten", "prims")
"""The operators that may be called again and again: those of other packages may have effects."""


@dataclass(frozen=True)
class Attempt:
    """A compiled model, with the kinds of parts that were given up."""

    call: Callable[..., Any]
    graphs: list[CompiledGraph] = field(repr=False)
    given_up: frozenset[str] = frozenset()

    @property
    def gains(self) -> bool:
        return any(graph.gains for graph in self.graphs)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the parts that kernels run, those that gain least first."""
        gains: dict[str, float] = {}
        for graph in self.graphs:
            for kind, gain in graph.won.items():
                gains[kind] = gains.get(kind, 0.0) + gain
        return sorted(gains, key=gains.__getitem__)


class WholeModel:
    """A captured model with the inputs of a call, and a way to compile it."""

    def __init__(
        self,
        module: GraphModule,
        examples: Sequence[Any],
        compiled: Callable[[frozenset[str]], Attempt],
        *,
        replays: bool = False,
    ) -> None:
        """`replays`: calls are replayed from CUDA graphs, those of the captured model too."""
        self.replays = replays
        self.module, self.examples, self.compiled = module, examples, compiled
        arrays = [x for x in examples if isinstance(x, torch.Tensor)]
        self.device = next((x.device for x in arrays if x.is_cuda), torch.device("cpu"))

    def faster(self, first: Attempt, *, tunes: bool) -> Attempt:
        """The fastest: the compiled model, that with fewer kernels, or the captured one."""
        if not self.can_be_called(first.graphs):
            return first
        try:
            with doing("timing the model as a whole"):
                return self._fastest(self._fewer(first) if tunes else first)
        except Exception as error:  # whatever it is: what was compiled runs
            log.warning("not timed as a whole: %s: %s", type(error).__name__, error)
            return first

    def can_be_called(self, graphs: Iterable[CompiledGraph]) -> bool:
        """True if calling the model twice has no other effect than calling it once."""
        if any(isinstance(x, FakeTensor) for x in self.examples):
            return False
        nodes = [n for graph in graphs for n in graph.analysis.module.graph.nodes]
        targets = [n.target for n in nodes if n.op == "call_function"]
        return all(
            not isinstance(target, torch._ops.OpOverload) or target.namespace in PURE
            for target in targets
        ) and not any(isinstance(target, torch._ops.HigherOrderOperator) for target in targets)

    def _fastest(self, best: Attempt) -> Attempt:
        """The compiled model, unless the captured one is faster: as it is, or replayed."""
        if not best.gains and not self.replays:
            return best
        plain = self.compiled(ALL) if self.replays and best.gains else None
        rivals = [best] if plain is None else [best, plain]
        times = self.times((self.module.forward, *(x.call for x in rivals)), SECONDS)
        captured, ours, fastest = times[0], times[1], min(times[1:])
        if captured * FASTER < fastest:
            log.info("the captured model is faster: %.4g µs, not %.4g", captured * 1e6, ours * 1e6)
            left = plain or self.compiled(ALL)
            return replace(left, call=self.module.forward)
        return best if fastest * FASTER >= ours else rivals[times.index(fastest) - 1]

    def _fewer(self, best: Attempt) -> Attempt:
        """The model without the kinds of parts that are slower in it than PyTorch's operators."""
        for kind in best.kinds[:MOST_KINDS]:
            other = self.compiled(best.given_up | {kind})
            now, fewer = self.times((best.call, other.call), TUNED_SECONDS)
            if fewer * FASTER < now:
                best = other
        return best

    def times(self, calls: Sequence[Callable[..., Any]], seconds: float) -> list[float]:
        """The median time of each call; they run in turns.

        A thread of its own makes them: where a model is captured, every call takes longer.
        """
        kind = self.device.type
        casts = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def measure() -> list[float]:
            devices = [self.device] if kind == "cuda" else []
            with (
                torch.no_grad(),
                torch.autocast(kind, casts[1], enabled=casts[0]),
                torch.random.fork_rng(devices),
            ):
                return self._times(calls, self._inputs(), seconds)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(measure).result()

    def _inputs(self) -> list[Any]:
        """The inputs of the call, copied, as a model may write into them; weights are not."""
        made: list[Any] = []
        for x in self.examples:
            if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
                made.append(x.node.hint)
            elif isinstance(x, torch.Tensor) and not isinstance(x, torch.nn.Parameter):
                made.append(x.detach().clone())
            else:
                made.append(x)
        return made

    def _times(
        self, calls: Sequence[Callable[..., Any]], inputs: Sequence[Any], seconds: float
    ) -> list[float]:
        for call in (*calls,) * FIRST:
            call(*inputs)
        once = max(self._wall(call, inputs, 1) for call in calls)
        count = max(1, int(SAMPLE / max(once, 1e-9)))
        rounds = max(FEWEST, min(MOST, int(seconds / (once * count * len(calls)))))
        found: list[list[float]] = [[] for _ in calls]
        for number in range(rounds):
            order = [*zip(calls, found, strict=True)]
            for call, samples in order if number % 2 else reversed(order):
                samples.append(self._wall(call, inputs, count))
        return [statistics.median(samples) for samples in found]

    def _wall(self, call: Callable[..., Any], inputs: Sequence[Any], count: int) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(count):
            call(*inputs)
        self._wait()
        return (time.perf_counter() - start) / count

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
