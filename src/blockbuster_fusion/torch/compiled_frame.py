"""A call that torch.compile has compiled, without what torch.compile does around it.

torch.compile keeps compiled code for each form of a call, with guards that tell whether a call is
of that form: arguments, parameters, attributes of modules, globals and modes of PyTorch. To look
them up, it has Python call back before a function runs, and each call of a compiled graph switches
that off and on. This takes as long as a few of PyTorch's operators. Here the same guards are
checked, and the same code runs, without a change of how Python calls functions.

Code of several graphs is left to torch.compile, because Python between them may be compiled too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list as entries_of
from torch._dynamo.eval_frame import innermost_fn

GRAPH, REST = "__compiled_fn", "__resume_at"
"""The beginnings of the names of graphs, and of functions behind a break between two of them."""


@dataclass(frozen=True)
class CompiledFrame:
    """The compiled code of a function for calls of one form."""

    guards: Any
    """torch.compile's guards; they have no `cache_entry` any more once they are void."""
    run: Callable[..., Any]

    @property
    def is_void(self) -> bool:
        """True if torch.compile has dropped the code."""
        return self.guards.cache_entry is None

    @property
    def check(self) -> Callable[[dict[str, Any]], bool]:
        """The function that checks the guards, of the function's variables by name."""
        check: Callable[[dict[str, Any]], bool] = self.guards.root.check
        return check


def last_frame(function: Callable[..., Any]) -> CompiledFrame | None:
    """The code that a function ran by last, if it has one graph and was compiled as a whole."""
    assert isinstance(function, FunctionType)
    entries = entries_of(function.__code__)
    if not entries:
        return None
    code, guards = entries[0].code, entries[0].guard_manager
    graphs = [name for name in code.co_names if name.startswith(GRAPH)]
    is_broken = any(name.startswith(REST) for name in code.co_names)
    makes_functions = any(isinstance(x, CodeType) for x in code.co_consts)
    if len(graphs) != 1 or is_broken or makes_functions:
        return None
    known = function.__globals__
    names = {name: known[name] for name in code.co_names if name in known}
    names[graphs[0]] = innermost_fn(known[graphs[0]])  # of which each call switches callbacks
    return CompiledFrame(guards, FunctionType(code, names, closure=function.__closure__))
