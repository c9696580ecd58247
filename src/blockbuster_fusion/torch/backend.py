"""`torch.compile(model, backend="blockbuster")`."""

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from os import PathLike
from types import CodeType
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.nn import functional
from torch.utils import _pytree as pytree

from blockbuster_fusion.compiler import check_target
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.workers import check_workers, shared_workers
from blockbuster_fusion.select.constraints import Wishes
from blockbuster_fusion.torch.capture.attention import restore_attention, write_out_attention
from blockbuster_fusion.torch.capture.sizes import SymbolSource
from blockbuster_fusion.torch.captured_call import captured_call
from blockbuster_fusion.torch.compile_graph import compile_graph
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.direct import has_modes, is_direct, metadata_now
from blockbuster_fusion.torch.machines import gpu_of
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.plan.cuda_graph import replayed
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.plan.ranged import ranged_call
from blockbuster_fusion.torch.rivals.composites import Called
from blockbuster_fusion.torch.rivals.custom import CustomOperator
from blockbuster_fusion.torch.rivals.weighing import CALL, Weighing, guarded_call
from blockbuster_fusion.torch.rivals.whole_model import Attempt, WholeModel, forward_of

NAME = "blockbuster"

Watcher = Callable[[CompiledGraph], None]
"""A function that is called with each graph that is compiled."""

_warned: set[tuple[str, int]] = set()
_warned_modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
"""The functions, by file and line, and the modules that a warning has named."""


@doing("compiling the model")
def backend(
    module: GraphModule,
    examples: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
    thorough: bool = False,
    frame: CodeType | None = None,
) -> Callable[..., Any]:
    """The backend of torch.compile: kernels for inference, eager mode for training.

    With `thorough`, the best kernels are looked for even where they cannot win, to tell of them.
    `frame` is the code of the function that torch.compile was given. Its caller calls the model
    itself where nothing is faster, needs no torch.compile for one graph, and replaces no plan.
    """
    mode, options = mode_in(mode, options)
    chosen = options_from(mode, options)
    if torch.is_grad_enabled() and needs_gradients(module, examples):
        _warn_of_training()
        return module.forward
    call = None if frame is None else captured_call(frame, module)
    beside = 0.0
    if call is not None:
        beside = guarded_call(len(examples))
    elif frame is not None:
        beside = CALL["cpu" if gpu_of(examples) is None else "cuda"]
    terms = Weighing(thorough=thorough, beside=beside)
    watches = watcher is not None and frame is None
    captured = _Captured(module, examples, mode, chosen, terms, watches=watches)
    captured.start()
    made = captured.compiled(frozenset())
    times = chosen.library != "never" and chosen.time_model and chosen.plan is None
    if times and (made.gains or captured.replays):
        whole = WholeModel(
            module,
            examples,
            captured.compiled,
            replays=captured.replays,
            strict=chosen.strict,
            seconds=chosen.seconds,
            beside=beside,
            plain=None if call is None or call.has_effects else call.plain,
            declared=frozenset(x.operator for x in chosen.operators),
        )
        made = whole.faster(made, tunes=mode in TUNING)
    communicates = any(graph.communicates for graph in made.graphs)
    needs_plan = captured.replays or communicates
    is_as_captured = made.is_captured or not (made.gains or needs_plan)
    for graph in made.graphs:
        graph.settle(is_as_captured=is_as_captured)
        if watcher is not None:
            watcher(graph)
    if is_as_captured:
        return forward_of(module)
    return made.call if needs_plan else _where_it_gains(made, module, examples)


def _where_it_gains(
    made: Attempt, module: GraphModule, examples: Sequence[Any]
) -> Callable[..., Any]:
    """A compiled model; for ranges of sizes in which it gains nothing, the captured one."""
    graph = made.graphs[0]
    if len(made.graphs) > 1 or graph.elsewhere is None:
        return made.call
    symbol = str(graph.elsewhere.scale.symbol)
    given = [str(x.node.expr) if isinstance(x, torch.SymInt) else None for x in examples]
    if symbol not in given or all(x.gains_here for x in graph.ranged):
        return made.call
    calls = [made.call if x.gains_here else forward_of(module) for x in graph.ranged]
    source = SymbolSource(symbol, given.index(symbol), None)
    return ranged_call(graph.elsewhere.scale, source, calls)


class _Captured:
    """A captured model, to be compiled with some parts given up."""

    def __init__(
        self,
        module: GraphModule,
        examples: Sequence[Any],
        mode: str | None,
        options: Options,
        terms: Weighing,
        *,
        watches: bool,
    ) -> None:
        """`terms` are those that do not depend on the model."""
        self.module, self.examples, self.watches = module, examples, watches
        self.terms = terms
        self.mode, self.options = mode, options
        self.gpu = gpu_of(examples)

    @property
    def replays(self) -> bool:
        """True if calls are replayed from CUDA graphs."""
        return self.mode in REPLAYING and self.gpu is not None

    def start(self) -> None:
        """Has Triton and workers start while the model is captured, if it is for a GPU."""
        if self.gpu is None or self.options.target not in (None, "cuda"):
            return
        shared_workers()
        with contextlib.suppress(ImportError):  # a part tells that Triton is missing
            from blockbuster_fusion.runtime.triton.ahead import start

            start(self.gpu)

    def compiled(self, given_up: frozenset[str]) -> Attempt:
        """The model compiled, without kernels for the kinds of parts that are given up."""
        measures, graphs = self.mode in TUNING, list[CompiledGraph]()
        called = _called(self.module)
        weighing = replace(
            self.terms,
            measures=measures,
            replayed=self.replays,
            called=called,
            given_up=given_up,
        )

        direct, is_wrapped = list[Callable[..., Any]](), has_modes()

        def inference(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            has_more = is_wrapped or not is_direct(
                metadata_now(), self.module, self.examples, graph
            )
            made = compile_graph(graph, _static_inputs(), self.options, weighing)
            graphs.append(made)
            call = _Watched(made, self.prepared) if self.watches else made.call(self.prepared)
            direct.extend([] if has_more else [call])
            return call

        compiler = aot_autograd(
            fw_compiler=inference,
            inference_compiler=inference,
            decompositions=_usual_decompositions(),
            keep_inference_input_mutations=True,
        )
        try:
            wrapped = compiler(self.module, self.examples)
            call = direct[0] if len(graphs) == len(direct) == 1 else wrapped
            return Attempt(call, graphs, given_up)
        finally:
            restore_attention(self.module)

    def prepared(self, plan: ModelPlan) -> Callable[..., Any]:
        """The plan as it is called: replayed in the modes that do so."""
        if self.mode not in REPLAYING:
            return plan
        return replayed(plan) if self.gpu is None else replayed(plan, self.gpu)


class _Watched:
    """The plan of a graph, prepared for calls, which a watcher may replace by another."""

    def __init__(
        self, graph: CompiledGraph, prepared: Callable[[ModelPlan], Callable[..., Any]]
    ) -> None:
        self.graph, self.prepared = graph, prepared
        self.plan, self.call = graph.plan, graph.call(prepared)

    def __call__(self, *arguments: Any) -> Any:
        if self.plan is not self.graph.plan:
            self.plan, self.call = self.graph.plan, self.graph.call(self.prepared)
        return self.call(*arguments)


def _called(module: GraphModule) -> Called:
    """The composites that a model calls itself, which are written out when it is captured."""
    attention = write_out_attention(module)
    norms = [n for n in module.graph.nodes if n.target in (functional.rms_norm, torch.rms_norm)]
    aten = torch.ops.aten
    return {
        aten.scaled_dot_product_attention.default: attention,
        aten._fused_rms_norm.default: len(norms),
    }


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The operators that are replaced by simpler ones before a graph is compiled."""
    table = dict(core_aten_decompositions())
    del table[torch.ops.aten.mv.default]  # has a row, and refuses operands of two dtypes
    del table[torch.ops.aten.baddbmm.default]  # has a row, and is contiguous, as no sum need be
    for name in WHOLE:  # has a row, and PyTorch computes it at once
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload or "default"), None)
    return table


@cache
def _usual_decompositions() -> dict[Any, Callable[..., Any]]:
    """The same, made once: AOTAutograd decomposes operators that were added later by itself."""
    return decompositions()


WHOLE = (
    *("silu", "hardswish", "hardsigmoid", "softplus", "mish", "log_sigmoid_forward"),
    *("_fused_rms_norm", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
    *("nll_loss_forward", "xlogy.Tensor"),
)
"""Operators that stay as they are: PyTorch's own kernel for each is a rival of ours."""


def needs_gradients(module: torch.nn.Module, examples: Iterable[Any]) -> bool:
    """True if a call with gradients enabled would compute some."""
    tensors = (x for x in (*examples, *module.parameters()) if isinstance(x, torch.Tensor))
    return any(x.requires_grad for x in tensors)


def _static_inputs() -> list[int]:
    metadata = metadata_now()
    return [] if metadata is None else [*metadata.static_input_indices]


def _warn_of_training() -> None:
    """Warns once for each model: for each module, or function, that Dynamo captures."""
    sentence = (
        "blockbuster: only inference is compiled, and this model needs gradients, so it runs "
        "eagerly, with the right gradients; call it under torch.no_grad() to have it fused"
    )
    try:
        frame = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx()
    except AttributeError:  # captured by something else
        warnings.warn(sentence, stacklevel=3)
        return
    owner = frame.f_locals.get("self")
    place = (frame.f_code.co_filename, frame.f_code.co_firstlineno)
    if isinstance(owner, torch.nn.Module):
        known = owner in _warned_modules
        _warned_modules.add(owner)
    else:
        known = place in _warned
        _warned.add(place)
    if known:
        return
    # without a registry, so that another model with the same code is warned of as well
    warnings.warn_explicit(sentence, UserWarning, *place)


def warn_of_lost_gradients(inputs: Any) -> bool:
    """Warns if inputs require gradients, which a compiled model does not give."""
    tensors = (x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor))
    needs = any(x.requires_grad for x in tensors)
    if needs:
        sentence = (
            "blockbuster: inputs require gradients, and a compiled model gives none; call it "
            "under torch.no_grad() if none are needed, or train the model itself"
        )
        warnings.warn(sentence, stacklevel=3)
    return needs


MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
TUNING = ("max-autotune", "max-autotune-no-cudagraphs")
"""The modes in which kernels are measured against PyTorch's operators."""
REPLAYING = ("reduce-overhead", "max-autotune")
"""The modes in which a plan on a GPU is replayed as a CUDA graph."""


def mode_in(
    mode: str | None, options: Mapping[str, Any] | None
) -> tuple[str | None, Mapping[str, Any] | None]:
    """The mode, which may be one of the options: torch.compile takes either, not both."""
    if mode is not None or options is None or "mode" not in options:
        return mode, options
    rest = dict(options)
    return rest.pop("mode"), rest


def options_from(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """The options that a caller of torch.compile gave, or WrongKind."""
    if mode not in MODES:
        modes = ", ".join(map(str, MODES[1:]))
        raise _wrong(f"a mode of {modes}", mode, "leave it out")
    known = Options.names()
    for name in options or {}:
        if name not in known:
            raise _wrong(f"the options {', '.join(known)}", name, "see docs/pytorch.md")
    made = Options(**_as_tuples(options or {}))
    made = replace(made, plan=_plan_from(made.plan))
    if made.plan is not None and made.wishes != Wishes():
        raise _wrong("a plan, or constraints on parts", "both", "leave out one")
    for name, usual in (("strict", False), ("time_model", True), ("freeze", False)):
        given = getattr(made, name)
        if not isinstance(given, bool):
            raise _wrong(f"{name} as True or False", given, f"leave it out for {usual}")
    if not isinstance(made.seconds, int | float) or not made.seconds >= 0:
        raise _wrong("a number of seconds for tuning", made.seconds, "leave it out for 600")
    if made.workers is not None:
        check_workers(made.workers)
    if made.ray is not None and not isinstance(made.ray, str):
        remedy = "leave it out to tune on this machine"
        raise _wrong("ray as the address of a cluster", made.ray, remedy)
    if not isinstance(made.operators, list | tuple) or not all(
        isinstance(x, CustomOperator) for x in made.operators
    ):
        remedy = "declare each by bb.custom_operator"
        raise _wrong("operators as a list of custom operators", made.operators, remedy)
    if made.library not in ("auto", "never"):
        raise _wrong('library as "auto" or "never"', made.library, 'leave it out for "auto"')
    if made.early is not None and not isinstance(made.early, bool):
        remedy = "leave it out to have it where it pays"
        raise _wrong("early as True or False", made.early, remedy)
    if made.target is not None:
        check_target(made.target)
    if type(made.candidates) is not int or made.candidates < 0:
        remedy = "leave it out for 24"
        raise _wrong("a number of candidates from 0 on", made.candidates, remedy)
    if made.threads is not None and (type(made.threads) is not int or made.threads < 1):
        remedy = "leave it out for PyTorch's own number"
        raise _wrong("a number of threads from 1 on", made.threads, remedy)
    return made


def _plan_from(given: object) -> Plan | None:
    """The plan that was given, or whose file was."""
    if given is None or isinstance(given, Plan):
        return given
    if isinstance(given, str | PathLike):
        return Plan.load(given)
    raise _wrong("a plan, or its file", given, "bb.plan makes one")


def _as_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose constraints are tuples of names, or WrongKind."""
    made = dict(options)
    for name in ("together", "apart"):
        given = made.get(name, ())
        if not _is_list(given) or not all(map(_are_names, given)):
            wanted = f'{name} as a list of lists of names, as [["mm", "add"]]'
            raise _wrong(wanted, given, "leave it out for no constraint")
        made[name] = tuple(map(tuple, given))
    given = made.get("materialise", ())
    if not _are_names(given):
        wanted = 'materialise as a list of names, as ["mm"]'
        raise _wrong(wanted, given, "leave it out for no constraint")
    made["materialise"] = tuple(given)
    return made


def _is_list(given: object) -> bool:
    return isinstance(given, list | tuple)


def _are_names(given: Any) -> bool:
    return _is_list(given) and all(isinstance(x, str) for x in given)


def _wrong(wanted: str, given: object, remedy: str) -> WrongKind:
    return WrongKind(function="torch.compile", wanted=wanted, given=repr(given), remedy=remedy)


def register_backend() -> None:
    """Registers the backend with torch.compile, if the package is not installed."""
    if NAME not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(name=NAME)(backend)
