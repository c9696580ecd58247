"""Times a compiled model as a whole against the captured one, and gives up what loses.

Parts are weighed one by one, and by predictions if they are not tuned. A model may still be slower
as a whole: calls between parts cost, and caches are shared. So the compiled model and the captured
one run in turns, with the inputs of the call that is being compiled. If the captured one is faster,
it runs. `bb.compile` then calls the user's model, and so that is timed in its place, unless Python
has effects in it: modules cost more than the operators that are captured of them. When a model is
tuned, the parts are given up one kind at a time first.

The model's state stays as it is. Inputs are copies, and what the model writes to is put back before
each call. Not timed are models with random numbers, with operators of other packages unless the
caller has declared them, and with inputs that share memory that is written to; nor models whose
sizes change, for which one call would decide, nor slow ones, for which calls cost nothing. Nor
models with collectives: ranks that call them in other numbers wait for ever. The option
`time_model` turns it off.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from blockbuster_fusion.messages import log
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.measuring import measuring
from blockbuster_fusion.torch.capture.collectives import is_collective
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.rivals.weighing import ALL, CALL

SECONDS = 0.4
"""The time in which a compiled model is compared with the captured one, beside first calls."""
TUNED_SECONDS = 2.0
"""The same for each kind of part of a model that is tuned."""
SLOW = 0.5
"""The seconds of a call from which on a model is not timed."""
FEWEST, MOST = 3, 25
"""The numbers of rounds."""
FIRST, FIRST_REPLAYED = 2, 4
"""The calls before the first sample: they compile, and capture CUDA graphs."""
SAMPLE = 2e-3
"""The least seconds of a sample; shorter calls are repeated in it."""
FASTER = 1.01
"""The factor by which another contender must be faster to be run."""
COLD_SHARE, COLD = 0.1, 5.0
"""A call takes longer after a model that fills the caches: a share of its time, up to a factor."""
MOST_KINDS = 8
"""The most kinds of parts that are given up one at a time."""
PURE = ("aten", "prims", "mkldnn")
"""The operators that may be called again and again: those of other packages may have effects."""


class Untimed(Exception):
    """The reason why a model is not timed."""


@dataclass(frozen=True)
class Attempt:
    """A compiled model, with the kinds of parts that were given up."""

    call: Callable[..., Any]
    graphs: list[CompiledGraph] = field(repr=False)
    given_up: frozenset[str] = frozenset()
    is_captured: bool = False
    """True if the captured model itself is called."""

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
        strict: bool = False,
        seconds: float = 600.0,
        beside: float = 0.0,
        plain: Callable[[], Any] | None = None,
        declared: Collection[OpOverload] = (),
    ) -> None:
        """`replays`: calls are replayed from CUDA graphs, those of the captured model too.

        With `strict`, faults are raised. `seconds` is the time for a model that is tuned. `beside`
        are seconds of a call that the captured model does without. `plain` makes the call that is
        being compiled, where that would run in place of the captured model. `declared` are
        operators of the user's that have no effects.
        """
        self.module, self.examples, self.compiled = module, examples, compiled
        self.replays, self.strict, self.beside = replays, strict, beside
        self.plain, self.declared = plain, declared
        self.end = time.monotonic() + seconds
        arrays = [x for x in examples if isinstance(x, torch.Tensor)]
        self.device = next((x.device for x in arrays if x.is_cuda), torch.device("cpu"))
        self.written: list[int] = []
        """The numbers of the inputs that the model writes to."""

    def faster(self, first: Attempt, *, tunes: bool) -> Attempt:
        """The fastest: the compiled model, that with fewer kernels, or the captured one."""
        try:
            self.written = written_inputs(first.graphs, self.examples, self.declared)
            with doing("timing the model as a whole"):
                return self._fastest(self._fewer(first) if tunes else first)
        except Untimed as reason:
            log.debug("not timed as a whole: %s", reason)
        except Exception as error:  # whatever it is: what was compiled runs
            if self.strict:
                raise
            log.warning("not timed as a whole: %s: %s", type(error).__name__, error)
        return first

    def _fastest(self, best: Attempt) -> Attempt:
        """The compiled model, unless the captured one is faster: as it is, or replayed."""
        if not best.gains and not self.replays:
            return best
        plain = self.compiled(ALL) if self.replays and best.gains else None
        rivals = [best] if plain is None else [best, plain]
        forward = forward_of(self.module)
        calls, usual = [x.call for x in rivals], self._usual(forward)
        if self.device.type == "cuda":
            # The device works while the host does what is done around a call.
            spent = self.beside or CALL["cuda"]
            around = busy(spent - self.beside, usual), *(busy(spent, call) for call in calls)
            times, beside = self.times(around, SECONDS), 0.0
        else:
            times = self.times((usual, *calls), SECONDS)
            beside = self.beside + min(COLD_SHARE * times[0], COLD * self.beside)
        captured, ours, fastest = times[0], times[1], min(times[1:])
        if captured * FASTER < fastest + beside:
            told = (captured * 1e6, (fastest + beside) * 1e6)
            log.info("the captured model is faster: %.4g µs, not %.4g", *told)
            return replace(plain or self.compiled(ALL), call=forward, is_captured=True)
        return best if fastest * FASTER >= ours else rivals[times.index(fastest, 1) - 1]

    def _usual(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The call that is made if nothing is faster, with the inputs of the captured model.

        The model itself would write to its own state and not to copies, so that it is not timed.
        """
        plain = self.plain
        if plain is None or self.written:
            return forward
        return lambda *inputs: plain()

    def _fewer(self, best: Attempt) -> Attempt:
        """The model without the kinds of parts that are slower in it than PyTorch's operators."""
        for kind in best.kinds[:MOST_KINDS]:
            if time.monotonic() > self.end:
                break
            other = self.compiled(best.given_up | {kind})
            now, fewer = self.times((best.call, other.call), TUNED_SECONDS)
            if fewer * FASTER < now:
                best = other
        return best

    def times(self, calls: Sequence[Callable[..., Any]], seconds: float) -> list[float]:
        """The median time of each call; they run in turns.

        They run in this thread: another one would have other threads of OpenMP beside these.
        """
        with torch.no_grad(), measuring(str(self.device)):
            return self._times(calls, self._inputs(), seconds)

    def _inputs(self) -> list[Any]:
        """The inputs of the call, with copies of those that the model writes to.

        Others are as they came: a graph that is replayed reads inputs where they are.
        """
        return [
            x.detach().clone() if number in self.written else x
            for number, x in enumerate(self.examples)
        ]

    def _times(
        self, calls: Sequence[Callable[..., Any]], inputs: Sequence[Any], seconds: float
    ) -> list[float]:
        first = FIRST_REPLAYED if self.replays else FIRST
        once = 0.0
        for number in range(first + 1):
            for call in calls:
                spent = self._wall(call, inputs, 1)
                once = max(once, spent) if number == first else 0.0
                if spent > SLOW and (number or call is calls[0]):
                    raise Untimed("a call takes so long that calls do not count")
        count = 1 if self.written else max(1, int(SAMPLE / max(once, 1e-9)))
        rounds = max(FEWEST, min(MOST, int(seconds / max(once * count * len(calls), 1e-9))))
        found: list[list[float]] = [[] for _ in calls]
        for number in range(rounds):
            order = [*zip(calls, found, strict=True)]
            for call, samples in order if number % 2 else reversed(order):
                samples.append(self._wall(call, inputs, count))
        return [statistics.median(samples) for samples in found]

    def _wall(self, call: Callable[..., Any], inputs: Sequence[Any], count: int) -> float:
        """The seconds of a call; what it writes to is put back before."""
        for number in self.written:
            inputs[number].copy_(self.examples[number])
        self._wait()
        start = time.perf_counter()
        for _ in range(count):
            call(*inputs)
        self._wait()
        return (time.perf_counter() - start) / count

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def busy(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call before which the host is busy for some time."""

    def run(*inputs: Any) -> Any:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return call(*inputs)

    return run


def forward_of(module: GraphModule) -> Callable[..., Any]:
    """The captured model as a function, whose code is generated now and not in a call."""
    if isinstance(module, _LazyGraphModule):
        module.real_recompile()
    forward: Callable[..., Any] = module.forward
    return forward


def written_inputs(
    graphs: Sequence[CompiledGraph],
    examples: Sequence[Any],
    declared: Collection[OpOverload] = (),
) -> list[int]:
    """The numbers of the inputs that a model writes to; or Untimed if it cannot be called again."""
    if any(isinstance(x, FakeTensor) for x in examples):
        raise Untimed("there are no arrays")
    if any(isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool) for x in examples):
        raise Untimed("its sizes change, and one call would decide for all")
    found: set[int] = set()
    for graph in graphs:
        given = graph.inputs
        for node in graph.analysis.module.graph.nodes:
            if node.op == "call_function" and node.target not in declared:
                found.update(_writes(node, given))
        if found and len(given) != len(examples):
            raise Untimed("it writes to inputs that are not known")
    memory = [_memory(examples[number]) for number in sorted(found)]
    others = [_memory(x) for n, x in enumerate(examples) if n not in found]
    if len({*memory}) < len(memory) or not {*memory}.isdisjoint(others):
        raise Untimed("inputs share memory that it writes to")
    return sorted(found)


def _writes(node: Node, given: Sequence[Node]) -> Iterator[int]:
    """The numbers of the inputs that an operator writes to; Untimed if it may do more."""
    target = node.target
    if isinstance(target, HigherOrderOperator):
        raise Untimed(f"{target} may have effects")
    if not isinstance(target, OpOverload):
        return
    if is_collective(target):
        raise Untimed(f"{target} would wait for other ranks")
    if target.namespace not in PURE:
        raise Untimed(f"{target} is of another package")
    if torch.Tag.nondeterministic_seeded in target.tags and not _drops_nothing(node):
        raise Untimed(f"{target} is random")
    if target._schema.is_mutable:
        for argument, x in zip(target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                if x not in given:
                    raise Untimed(f"{target} writes to what is no input")
                yield given.index(x)


def _drops_nothing(node: Node) -> bool:
    """True for PyTorch's attention without dropout, which is not random."""
    is_attention = node.target is torch.ops.aten.scaled_dot_product_attention.default
    given = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
    return is_attention and isinstance(given, int | float) and given == 0


def _memory(x: Any) -> int:
    """A number that tells the memory of an array apart from that of others."""
    return x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else id(x)
