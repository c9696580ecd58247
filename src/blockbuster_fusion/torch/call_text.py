"""The call of a compiled model as Python text, which is fastest.

A call of a small model takes microseconds, of which a walk through its arguments would be a large
share. The text has a test for each thing that must be as it was, and no other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo import eval_frame
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from blockbuster_fusion.torch.compiled_frame import CompiledFrame
from blockbuster_fusion.torch.plan.likeness import tests_of_tensors
from blockbuster_fusion.torch.plan.operator_properties import PLAIN

NEXT = "\n        "
Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""A call, of positional arguments and of those by name."""


def alone_call(
    model: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any], otherwise: Call
) -> Call:
    """A call of the model itself, for arguments of the form of given ones; else of `otherwise`."""
    made = _Text({"model": model, "otherwise": otherwise})
    return made.call(made.alone(arguments, named))


def compiled_call(
    model: Callable[..., Any], frames: Sequence[CompiledFrame], otherwise: Call
) -> Call:
    """A call of the code of the first frame whose guards hold; else of `otherwise`."""
    made = _Text({"model": model, "otherwise": otherwise})
    return made.call(made.compiled(frames))


def _inlined(model: Callable[..., Any]) -> Call:
    """The call that torch.compile sees in a function that it compiles: the model's own."""

    def call(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        with torch.no_grad():
            return model(*arguments, **named)

    return call


class _Text:
    """The text of a call, and the names in it."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.tensors: list[tuple[str, torch.Tensor]] = []
        """The tensors that are tested together, with their places."""

    def call(self, lines: Iterable[str]) -> Call:
        """The function that has some lines, and calls `otherwise` behind them."""
        rest = "    return otherwise(arguments, named)"
        text = "\n".join(["def call(arguments, named):", *lines, rest])
        exec(text, self.names)
        call: Any = self.names.pop("call")  # else it would hold itself
        call.__doc__ = text
        call._torchdynamo_inline = _inlined(self.names["model"])
        return cast(Call, call)

    def name(self, kind: str, x: Any) -> str:
        """A name for an object."""
        made = f"{kind}{len(self.names)}"
        self.names[made] = x
        return made

    def alone(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[str]:
        """The lines that call the model itself, with arguments of a form."""
        self.names["grad_enabled"] = torch.is_grad_enabled
        self.names["set_grad"] = torch._C._set_grad_enabled
        tests = [f"len(arguments) == {len(arguments)}", *self.elements("arguments", arguments)]
        tests += [*self.elements("named", named)] if named else []
        tests.insert(1, f"len(named) == {len(named)}" if named else "not named")
        tests += tests_of_tensors("arguments", len(arguments), self.tensors, self.names)
        run = f"return model(*arguments{', **named' if named else ''})"
        yield f"    if (\n        {f'{NEXT}and '.join(tests)}\n    ):"
        yield f"        if not grad_enabled(): {run}"
        if not any(x.requires_grad for _, x in self.tensors):
            yield "        set_grad(False)"
            yield f"        try: {run}"
            yield "        finally: set_grad(True)"

    def elements(self, place: str, given: Any) -> Iterator[str]:
        """The tests of the elements of a list, a tuple or a mapping."""
        if isinstance(given, dict):
            for key in given:
                yield f"{key!r} in {place}"
        keys = given if isinstance(given, dict) else range(len(given))
        for key in keys:
            yield from self.tests(f"{place}[{key!r}]", given[key])

    def tests(self, place: str, x: Any) -> Iterator[str]:
        """The tests that an argument is of the form of a given one."""
        if type(x) in PLAIN:
            self.tensors.append((place, x))
        elif x is None or isinstance(x, bool):
            yield f"{place} is {x}"
        else:
            kind = type(x)
            is_known = kind.__module__ == "builtins"
            yield f"type({place}) is {kind.__name__ if is_known else self.name('kind', kind)}"
            if kind in (tuple, list, dict):
                yield f"len({place}) == {len(x)}"
                yield from self.elements(place, x)
            else:
                yield f"{place} == {repr(x) if kind in (int, str) else self.name('x', x)}"

    def compiled(self, frames: Sequence[CompiledFrame]) -> Iterator[str]:
        """The lines that run compiled code, if its guards hold, and nothing records the call."""
        if not frames:
            return
        self.names |= {"frames": eval_frame, "stance": eval_frame._stance}
        self.names |= {"watcher": get_eval_frame_callback, "is_traced": torch._C._is_tracing}
        self.names["is_recorded"] = is_fx_symbolic_tracing
        yield "    if frames._stance is stance and watcher() is None:"
        yield "        if is_traced() or is_recorded(): return otherwise(arguments, named)"
        yield '        found = {"arguments": arguments, "named": named, "model": model}'
        for frame in frames:
            guards, check = self.name("guards", frame.guards), self.name("check", frame.check)
            yield f"        if {guards}.cache_entry is not None and {check}(found):"
            yield f"            return {self.name('run', frame.run)}(*arguments, **named)"
