"""Replays a plan as a CUDA graph: one call launches all its kernels.

A graph is captured for inputs with given shapes and strides. Weights, and inputs that the plan
writes into, are captured by their address, and so are others as long as they stay where they are.
Inputs that move are copied into buffers of the graph. Results are copied out of it, so that later
calls do not overwrite them.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.torch.capture.collectives import is_collective
from blockbuster_fusion.torch.plan.operator_properties import PLAIN, depends_on_data, is_pure
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.plan.steps import AllocateStep, KernelStep, OperatorStep, Slot

MOST_GRAPHS = 16
"""The number of graphs that are kept of one plan."""
MOST_COUNTED = 256
"""The number of forms of inputs that are remembered to have been there once."""

PlanCall = Callable[[], list[Any]]


class Graphs(Protocol):
    """Captures and replays on a device."""

    def captured(self, run: PlanCall) -> tuple[Callable[[], None], list[Any]]:
        """A function that replays `run`, and the results that it fills; nothing is computed yet."""

    def follow(self) -> bool:
        """Makes this call wait for the one before; False if nothing can be replayed now."""


class CudaGraphs:
    """CUDA graphs that share memory: no two of them run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.last: torch.cuda.Stream | None = None

    def captured(self, run: PlanCall) -> tuple[Callable[[], None], list[Any]]:
        graph = torch.cuda.CUDAGraph()
        new_stream: Any = torch.cuda.Stream  # untyped
        capturing = torch.cuda.graph(
            graph,
            pool=self.pool,
            stream=new_stream(self.device),
            capture_error_mode="thread_local",
        )
        with torch.cuda.device(self.device), capturing:
            made = run()
        return graph.replay, made

    def follow(self) -> bool:
        if torch.cuda.is_current_stream_capturing():  # the caller captures the whole model
            return False
        stream = torch.cuda.current_stream(self.device)
        if self.last is not None and self.last != stream:
            stream.wait_stream(self.last)
        self.last = stream
        return True


def replayed(plan: ModelPlan, device: torch.device | None = None) -> "ModelPlan | ReplayedPlan":
    """The plan as CUDA graphs if it runs on a GPU and they can hold it, else as it is.

    `device` is where it runs; by default, that of its kernels.
    """
    device = device or plan_device(plan)
    if device.type != "cuda":
        return plan
    reason = obstacle(plan)
    if reason is not None:
        log.warning("a graph is not replayed as a CUDA graph: %s", reason)
        return plan
    return ReplayedPlan(plan, CudaGraphs(device), device)


class ReplayedPlan:
    """A plan whose third call with inputs of one form captures a graph, which is then replayed.

    The first call compiles kernels. The second one runs in the buffers of the future graph, so that
    capturing runs nothing twice: plans may write into their inputs. When an input moves
    for the first time, this begins anew, once.
    """

    def __init__(self, plan: ModelPlan, graphs: Graphs, device: torch.device) -> None:
        self.plan, self.graphs, self.device = plan, graphs, device
        self.fixed = {*plan.weights, *_written(plan)}
        self.moving = set[int]()
        """The inputs that were at more than one address, in calls of one form."""
        self.places = RecentlyUsed[dict[int, int]](MOST_COUNTED)
        """The addresses of the last call, by the form of its inputs."""
        self.counted = RecentlyUsed[bool](MOST_COUNTED)
        self.known = RecentlyUsed[_Replay | None](MOST_GRAPHS)
        self.last: _Replay | None = None
        """The graph of the last call: it is tried first, since looking others up takes longer."""
        self.lock = threading.Lock()

    def __call__(self, *given: Any) -> list[Any]:
        with self.lock:
            if not self.graphs.follow():
                return self.plan(*given)
            form = self.plan.key(given)
            replay = self.last
            if replay is None or not replay.serves(form, given):
                replay = self.last = self.looked_up(form, given)
            return self.plan(*given) if replay is None else replay(self.graphs, given)

    def looked_up(self, form: Hashable, given: Sequence[Any]) -> "_Replay | None":
        """The graph of a call; None if it is the first of its form, or cannot be replayed."""
        addresses = self.addresses(form, given)
        key = (form, *addresses.items())
        if key not in self.known:
            if key not in self.counted:
                self.counted.put(key, True)
                return None
            fits = all(self.is_fit(x) for x in given)
            made = _Replay(self.plan, form, addresses, given) if fits else None
            self.known.put(key, made)
        return self.known.get(key)

    def addresses(self, form: Hashable, given: Sequence[Any]) -> dict[int, int]:
        """The addresses of the inputs that a graph may read where they are."""
        found = {
            slot: x.data_ptr()
            for slot, x in enumerate(given)
            if isinstance(x, torch.Tensor) and slot not in self.moving
        }
        before = self.places.get(form) or found
        moved = {s for s, at in found.items() if before.get(s, at) != at} - self.fixed
        self.moving |= moved
        self.places.put(form, found)
        return {slot: at for slot, at in found.items() if slot not in moved}

    def is_fit(self, x: Any) -> bool:
        if not isinstance(x, torch.Tensor):
            return x is None or isinstance(x, int)
        is_plain = type(x) in PLAIN and x.layout is torch.strided and not x.is_neg()
        return is_plain and x.device == self.device


class _Replay:
    """A graph for inputs with given shapes and strides."""

    def __init__(
        self, plan: ModelPlan, form: Hashable, fixed: Mapping[int, int], given: Sequence[Any]
    ) -> None:
        """`fixed` are the addresses of the inputs that are read where they are."""
        self.plan, self.form = plan, form
        self.slots, self.addresses = [*fixed], [*fixed.values()]
        self.copies, self.spans = dict[int, torch.Tensor](), dict[int, torch.Tensor]()
        """The inputs that are copied, and the memory of each; others are read where they are."""
        for slot, x in enumerate(given):
            if isinstance(x, torch.Tensor) and slot not in fixed:
                with torch.inference_mode(False):  # later calls may be outside of it
                    self.spans[slot] = torch.empty_like(_span(x))
                    self.copies[slot] = self.spans[slot].as_strided(x.shape, x.stride())
        self.is_warm = self.has_failed = False
        self.replay: Callable[[], None] | None = None
        self.results: list[Any] = []

    def serves(self, form: Hashable, given: Sequence[Any]) -> bool:
        """True for inputs of the same form at the same addresses."""
        return form == self.form and [given[s].data_ptr() for s in self.slots] == self.addresses

    def __call__(self, graphs: Graphs, given: Sequence[Any]) -> list[Any]:
        if self.has_failed:
            return self.plan(*given)
        for slot, span in self.spans.items():
            span.copy_(_span(given[slot]))
        inputs = [self.copies.get(slot, x) for slot, x in enumerate(given)]
        if not self.is_warm:
            made = self.plan(*inputs)
            self.is_warm = True
            return self.own(given, made)
        if self.replay is None:
            try:
                self.replay, self.results = graphs.captured(lambda: self.plan(*inputs))
            except RuntimeError as error:
                log.warning("a graph is not replayed as a CUDA graph: %s", error)
                self.has_failed = True
                return self.plan(*given)
        self.replay()
        return self.own(given, self.results)

    def own(self, given: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Copies of the results, which the next call does not overwrite."""
        is_given = [isinstance(x, Slot) and x.number < len(given) for x in self.plan.outputs]
        made = [x for x, skipped in zip(results, is_given, strict=True) if not skipped]
        copies = iter(_fresh(made))
        return [
            given[x.number] if skipped else next(copies)
            for x, skipped in zip(self.plan.outputs, is_given, strict=True)
        ]


def _span(x: torch.Tensor) -> torch.Tensor:
    """All memory from the first element of a tensor to its last."""
    ends = [(n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)]
    return x.as_strided((1 + sum(ends) if x.numel() else 0,), (1,))


def _fresh(results: Sequence[Any]) -> list[Any]:
    """Copies with the strides of the originals, which share memory where these do."""
    owners = [x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else 0 for x in results]
    shared: dict[int, torch.Tensor] = {}
    made: list[Any] = []
    for x, owner in zip(results, owners, strict=True):
        if not isinstance(x, torch.Tensor):
            made.append(x)
        elif owners.count(owner) == 1:
            is_dense = x.is_contiguous()
            made.append(x.clone() if is_dense else _span(x).clone().as_strided(x.shape, x.stride()))
        else:
            if owner not in shared:
                whole = torch.empty(0, dtype=torch.uint8, device=x.device)
                shared[owner] = whole.set_(x.untyped_storage()).clone()
            copy = torch.empty(0, dtype=x.dtype, device=x.device)
            place = (x.storage_offset(), x.shape, x.stride())
            made.append(copy.set_(shared[owner].untyped_storage(), *place))
    return made


# ---------------------------------------------------------------- obstacles


def plan_device(plan: ModelPlan) -> torch.device:
    """The device of the first kernel of a plan."""
    found = (step.device for step in plan.steps if isinstance(step, KernelStep))
    return next(found, torch.device("cpu"))


def obstacle(plan: ModelPlan, kind: str = "cuda") -> str | None:
    """The reason why a graph on this kind of device cannot hold a plan, or None."""
    for step in plan.steps:
        match step:
            case KernelStep(executable=executable):
                if step.device.type != kind:
                    return f"{step.name} runs on {step.device}"
                if not isinstance(executable.runner, Compiled) or not executable.runner.is_static:
                    return f"{step.name} is not compiled as a whole"
            case AllocateStep():
                if step.device.type != kind:
                    return f"an array is on {step.device}"
            case OperatorStep():
                reason = _why_not(step)
                if reason is not None:
                    return reason
                if any(slot >= plan.inputs for slot in _writes(step)):
                    return f"{step.name} writes into what is no input"
    return None


def _why_not(step: OperatorStep) -> str | None:
    function = step.function
    if not isinstance(function, OpOverload):
        is_known = is_pure(function) or function.__module__.startswith("blockbuster_fusion")
        return None if is_known else f"{step.name} may do anything"
    if depends_on_data(function):
        return f"data decides how much {step.name} gives"
    if torch.Tag.nondeterministic_seeded in function.tags and not _drops_nothing(step):
        return f"{step.name} is random"
    if is_collective(function):
        return f"{step.name} waits for other ranks, which need not replay"
    if function.namespace != "aten":
        return f"{step.name} is no operator of PyTorch's own"
    if step.options.get("non_blocking"):
        return f"{step.name} copies without waiting"
    return None


def _drops_nothing(step: OperatorStep) -> bool:
    """True for attention without dropout, which is not random."""
    assert isinstance(step.function, OpOverload)
    names = [a.name for a in step.function._schema.arguments]
    given = dict(zip(names, step.arguments, strict=False)) | dict(step.options)
    return "dropout_p" in names and given.get("dropout_p", 0.0) == 0


def _writes(step: OperatorStep) -> Iterator[int]:
    """The slots that an operator writes into."""
    if is_pure(step.function):
        return
    written = step.arguments[:1]  # of a function of this package
    if isinstance(step.function, OpOverload):
        given = dict(enumerate(step.arguments)) | dict(step.options)
        written = tuple(
            given.get(i, given.get(a.name))
            for i, a in enumerate(step.function._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        )
    yield from (x.number for x in written if isinstance(x, Slot))


def _written(plan: ModelPlan) -> Iterator[int]:
    for step in plan.steps:
        if isinstance(step, OperatorStep):
            yield from _writes(step)
        elif isinstance(step, KernelStep):
            yield from step.written
