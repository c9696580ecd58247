"""`bb.compile` of a PyTorch module or function."""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakMethod

import torch

from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.torch.backend import backend, options_from, warn_of_lost_gradients
from blockbuster_fusion.torch.call_text import Call, alone_call, compiled_call
from blockbuster_fusion.torch.compiled_frame import CompiledFrame, last_frame
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.explain import Explanation, model_name
from blockbuster_fusion.torch.forms import form_of
from blockbuster_fusion.torch.options import Options

MOST_FORMS = 64
"""The number of forms of arguments for which a model is known to be fastest."""
MOST_FRAMES = 8
"""The number of forms of calls that are compiled, and run without torch.compile."""


class CompiledModel:
    """A module or function that runs on compiled kernels, compiled anew where guards fail.

    Where nothing is faster than the model, it is called itself, without torch.compile.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        dynamic: bool | None = None,
        mode: str | None = None,
        **options: Any,
    ) -> None:
        self.options = options_from(mode, options)  # says what is wrong, before it is captured
        self.model, self.__name__ = model, model_name(model)
        self.has_warned = self.has_run = False
        self.graphs: list[CompiledGraph] = []
        self.left_alone = RecentlyUsed[Call | None](MOST_FORMS)
        """The calls of the model itself, by the forms of arguments for which nothing is faster;
        None for a form that has come once."""
        self.frames: list[CompiledFrame] = []
        """The compiled code that runs without torch.compile, the newest first."""
        self.frame = own_frame(model)
        # torch.compile keeps backends as long as the process runs: this one holds no model
        watched = partial(
            backend,
            mode=mode,
            options=options,
            watcher=held_weakly(self._note),
            frame=self.frame.__code__,
        )
        self.compiled = torch.compile(self.frame, backend=watched, dynamic=dynamic)
        self.compiled_call = compiled_call(model, self.frames, held_weakly(self._judged))
        """A call of the code of a frame whose guards hold, or one that is judged."""
        self.call = self.compiled_call
        """The same, or a call of the model itself for arguments like the last ones."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The model's results, without gradients; inputs that require some get one warning."""
        return self.call(arguments, named)

    def _note(self, graph: CompiledGraph) -> None:
        self.graphs.append(graph)

    def _judged(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The results of a call that is not like the last ones."""
        if torch.is_grad_enabled():
            if not self.has_warned:
                self.has_warned = warn_of_lost_gradients((arguments, named))
            with torch.no_grad():
                return self.call(arguments, named)
        form = form_of(arguments, named)
        if form not in self.left_alone:
            return self._results(arguments, named, form)
        known = self.left_alone.get(form)
        if known is None:
            known = alone_call(self.model, arguments, named, held_weakly(self._otherwise))
            self.left_alone.put(form, known)
        self.call = known
        return self.model(*arguments, **named)

    def _otherwise(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The results of a call for which the model is not known to be fastest."""
        return self.compiled_call(arguments, named)

    def _results(
        self, arguments: tuple[Any, ...], named: dict[str, Any], form: Hashable | None
    ) -> Any:
        """The results by torch.compile; what it has compiled tells whether it is needed again."""
        known = len(self.graphs)
        run = self.compiled if self.has_run else self._first
        results = run(*arguments, **named)
        made, frame = self.graphs[known:], last_frame(self.frame)
        if form is not None and self._ran_as_captured(made, frame, arguments, named):
            self.left_alone.put(form, None)
        elif frame is not None and all(x.guards is not frame.guards for x in self.frames):
            self.frames = [frame, *(x for x in self.frames if not x.is_void)][:MOST_FRAMES]
            judged = held_weakly(self._judged)
            self.call = self.compiled_call = compiled_call(self.model, self.frames, judged)
        return results

    def _ran_as_captured(
        self,
        made: list[CompiledGraph],
        frame: CompiledFrame | None,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> bool:
        """True if a call ran by graphs as they were captured: those made in it, or known ones."""
        if made:
            return all(graph.is_as_captured for graph in made)
        if frame is None or not all(graph.is_as_captured for graph in self.graphs):
            return False
        return frame.check({"arguments": arguments, "named": named, "model": self.model})

    def _first(self, *arguments: Any, **named: Any) -> Any:
        """The results of the first call, in which torch.compile is told to leave out records.

        The code that it makes would tell a profiler in each call what it costs: 2 µs.
        """
        self.has_run = True
        with torch._dynamo.config.patch(record_runtime_overhead=False):
            return self.compiled(*arguments, **named)

    @property
    def explanation(self) -> Explanation:
        """The explanation of the graphs that have been compiled so far."""
        return Explanation(tuple(self.graphs), options=self.options, name=self.__name__)


def held_weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose object is not kept alive: it is called as long as that lives."""
    held = WeakMethod(method)

    def call(*given: Any) -> Any:
        found = held()
        return None if found is None else found(*given)

    return call


def own_frame(model: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the model, with code of its own.

    torch.compile counts what it has compiled by code, and stops at a limit. Models of one class
    share the code of `forward`, and each has a backend of its own here. It also knows code by its
    file, line and name: sizes that differ between two models with one name would become dynamic.
    """

    def run(*arguments: Any, **named: Any) -> Any:
        return model(*arguments, **named)

    run.__code__ = run.__code__.replace(co_name=f"run_{next(_NUMBERS)}")
    return run


_NUMBERS = count()


def compile_model(model: Callable[..., Any], *examples: Any, **named: Any) -> CompiledModel:
    """The model compiled for inference, and run once with the examples, if there are any.

    `dynamic`, `mode` and the fields of `Options` are options, by themselves or as a mapping
    `options`; all else is an example by name.
    """
    known = ("dynamic", "mode", *Options.names())
    chosen = {name: named.pop(name) for name in known if name in named}
    if isinstance(named.get("options"), Mapping):  # as torch.compile takes them
        chosen |= named.pop("options")
    made = CompiledModel(model, **chosen)
    if examples or named:
        made(*examples, **named)
    return made
