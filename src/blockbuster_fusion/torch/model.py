"""`bb.compile` of a PyTorch module or function."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any

import torch
from torch import is_grad_enabled

from blockbuster_fusion.torch.backend import backend, options_from, warn_of_lost_gradients
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.explain import Explanation, model_name
from blockbuster_fusion.torch.options import Options

Form = tuple[tuple[torch.Size, torch.dtype], ...]
"""The shapes and dtypes of the arguments of a call."""


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
        self.left_alone: set[Form] = set()
        """The forms of arguments for which nothing is faster than the model itself."""
        watched = partial(
            backend, mode=mode, options=options, watcher=self.graphs.append, spares_calls=True
        )
        self.compiled = torch.compile(own_frame(model), backend=watched, dynamic=dynamic)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The model's results, without gradients; inputs that require some get one warning."""
        if not is_grad_enabled():  # first, as this costs the most where little is computed
            if self.left_alone and not named and form_of(arguments) in self.left_alone:
                return self.model(*arguments)
            return self._results(arguments, named)
        if not self.has_warned:
            self.has_warned = warn_of_lost_gradients((arguments, named))
        with torch.no_grad():
            return self(*arguments, **named)

    def _results(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The results by torch.compile; what it has compiled tells whether it is needed again."""
        known = len(self.graphs)
        run = self.compiled if self.has_run else self._first
        results = run(*arguments, **named)
        made = self.graphs[known:]
        form = None if named or not made else form_of(arguments)
        if form is not None and all(graph.is_as_captured for graph in made):
            self.left_alone.add(form)
        return results

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


def form_of(arguments: tuple[Any, ...]) -> Form | None:
    """The form of some arguments; None unless all have a shape and a dtype."""
    try:
        return tuple(map(_shape_and_dtype, arguments))
    except AttributeError:
        return None


_shape_and_dtype = attrgetter("shape", "dtype")


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
