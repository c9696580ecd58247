"""The contenders of a case, and how exact each of them is."""

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.explain.explanation import Explanation
from blockbuster_fusion.torch.model import CompiledModel

EAGER, INDUCTOR, INDUCTOR_GRAPHS = "eager", "inductor", "inductor reduce-overhead"
OURS = "blockbuster"
DYNAMO = "dynamo"
"""torch.compile with a backend that runs the graph as it is: what capturing itself costs."""
DIRECT = "bb.compile"
"""The model compiled by bb.compile, which needs no torch.compile where nothing is faster."""
FROZEN = "freeze"
"""The same with freeze=True: weights are constants."""
INDUCTOR_FROZEN, ONNX_RUNTIME = "inductor freezing", "onnx runtime"
BEST = "eager at its best"
"""Eager PyTorch with another spelling of the same function, as SDPA for attention."""
MODES = ("default", DIRECT, FROZEN, "reduce-overhead", "max-autotune")
BASELINES = (EAGER, INDUCTOR, DYNAMO, INDUCTOR_FROZEN, ONNX_RUNTIME, BEST)
FLOOR = {torch.float32: 16.0, torch.bfloat16: 1.0}
"""The error that is always allowed, in units of the dtype's rounding (eps)."""

Call = Callable[[], Any]


def names_of(
    device: str, modes: Sequence[str], baselines: Sequence[str], *, replays: bool = False
) -> list[str]:
    """The contenders of a run; eager is always one, and replays meet a rival that replays.

    With `replays`, all of them are replayed.
    """
    names = [EAGER, *(f"{OURS} {mode}" for mode in modes)]
    if INDUCTOR in baselines:
        names.append(INDUCTOR)
        graphs = any(mode not in ("default", DIRECT) for mode in modes) and not replays
        if device == "cuda" and graphs:
            names.append(INDUCTOR_GRAPHS)
    return names + [name for name in BASELINES[2:] if name in baselines]


def contender(
    name: str,
    model: Callable[..., Any],
    inputs: Sequence[Tensor],
    watcher: Callable[[CompiledGraph], None],
    tuning: float,
    *,
    replays: bool = False,
) -> Call:
    """A call of the model as one contender runs it; compiles nothing yet.

    With `replays`, a CUDA graph is captured of it. Then the time of plain calls decides nothing.
    """
    if name in (EAGER, BEST):
        return lambda: model(*inputs)
    if name == ONNX_RUNTIME:
        return _in_onnx_runtime(model, inputs)
    if name == INDUCTOR_FROZEN:
        frozen = torch.compile(model, dynamic=False, options={"freezing": True})
        return lambda: frozen(*inputs)
    if name in (INDUCTOR, DYNAMO):
        own = "eager" if name == DYNAMO else "inductor"
        compiled = torch.compile(model, backend=own, dynamic=False)
        return lambda: compiled(*inputs)
    if name == INDUCTOR_GRAPHS:
        return _replayed(torch.compile(model, dynamic=False, mode="reduce-overhead"), inputs)

    def blockbuster(module: Any, examples: Any, mode: str | None = None) -> Any:
        options = {"seconds": tuning, "time_model": not replays}
        return backend(module, examples, watcher=watcher, mode=mode, options=options)

    mode = name.removeprefix(f"{OURS} ")
    if mode in (DIRECT, FROZEN):
        options = {"time_model": not replays} | ({"freeze": True} if mode == FROZEN else {})
        return _direct(model, inputs, watcher, **options)
    fused = torch.compile(model, backend=blockbuster, dynamic=False, mode=mode)
    return lambda: fused(*inputs)


def _direct(
    model: Callable[..., Any],
    inputs: Sequence[Tensor],
    watcher: Callable[[CompiledGraph], None],
    **options: Any,
) -> Call:
    """A call of the model as bb.compile compiles it, which is done at once."""
    compiled = CompiledModel(model, dynamic=False, **options)
    compiled(*inputs)
    for graph in compiled.graphs:
        watcher(graph)
    return lambda: compiled(*inputs)


def _in_onnx_runtime(model: Callable[..., Any], inputs: Sequence[Tensor]) -> Call:
    """A run of the exported model in ONNX Runtime, with PyTorch's number of threads."""
    import onnxruntime

    module = model if isinstance(model, nn.Module) else _AsModule(model)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False)
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that wait for the next run would take time from the other contenders.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    data = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return lambda: [torch.from_numpy(made) for made in session.run(None, feed)]


class _AsModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def _replayed(compiled: Callable[..., Any], inputs: Sequence[Tensor]) -> Call:
    """Inductor is told where a step begins, as its results are overwritten by the next."""

    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*inputs)

    return call


def counts(graphs: Sequence[CompiledGraph]) -> dict[str, int]:
    """The numbers of kernels, and of operators that PyTorch ran."""
    nests = [fused.executable.nest for graph in graphs for fused in graph.fused]
    explanation = Explanation(tuple(graphs))
    return {
        "kernels": sum(len(nest.kernels) for nest in nests if nest is not None),
        "operators": len(explanation.misc) + len(explanation.fallbacks),
    }


# ---------------------------------------------------------------- errors


def exact_results(model: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results of the model in float64; the model itself stays as it is."""
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model).double()
    return results(model(*(x.double() if x.is_floating_point() else x for x in inputs)))


def results(made: Any) -> list[Tensor]:
    """The tensors of a result, copied: a replay overwrites them."""
    return [x.clone() for x in pytree.tree_leaves(made) if isinstance(x, Tensor)]


def errors(found: Sequence[Tensor], exact: Sequence[Tensor], like: Sequence[Tensor]) -> list[float]:
    """The error of each result; infinite where its form differs from that of eager's."""
    if len(found) != len(exact):
        return [float("inf")] * len(exact)
    return [
        error(x, wanted) if (x.shape, x.dtype) == (usual.shape, usual.dtype) else float("inf")
        for x, wanted, usual in zip(found, exact, like, strict=True)
    ]


def error(found: Tensor, exact: Tensor) -> float:
    """The largest error, relative to its row; of integers, the share that differs."""
    if not exact.is_floating_point():
        return (found != exact).double().mean().item()
    off = (found.double() - exact).abs()
    counts = exact.isfinite()
    same = torch.where(counts, found.isfinite(), found.eq(exact) | (found.isnan() & exact.isnan()))
    if not same.all():
        return float("inf")
    off, size = off.where(counts, 0.0), exact.abs().where(counts, 0.0)
    scale = size.amax(-1, keepdim=True) if exact.ndim else size
    return (off / scale.clamp_min(torch.finfo(torch.float64).tiny)).max().item()


def allowed(eager: Sequence[float], exact: Sequence[Tensor], dtype: torch.dtype) -> list[float]:
    """Twice eager's own error of each result, and a floor for floats."""
    floor = FLOOR[dtype] * torch.finfo(dtype).eps
    return [
        2 * own + (floor if wanted.is_floating_point() else 0.0)
        for own, wanted in zip(eager, exact, strict=True)
    ]
