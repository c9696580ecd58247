"""Programs by name, as the command line has them: an example, or a function of a file."""

import __future__

import importlib.util
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.trace import ArraySpec, trace
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.tools import examples

Parameter = inspect.Parameter


Model = tuple[Any, Sequence[Any]]
"""A model and its inputs, whatever it is that runs it."""


def find_program(name: str) -> ArrayProgram:
    """An example by its name, or `file.py:function`.

    The function's parameters are annotated with their axes (`def f(Q: "M D", K: "N D")`), or it
    takes nothing and returns an array program. Other parameters keep their defaults.
    """
    found = find_model(name)
    if isinstance(found, ArrayProgram):
        return found
    raise _no_program(name, found)


def find_model(name: str) -> ArrayProgram | Model:
    """A program, as `find_program` has it; or a model with its inputs.

    A function that takes nothing may return a model and a sequence of its inputs, or its one input.
    """
    path, colon, function = name.rpartition(":")
    if name.endswith(".py") or (path.endswith(".py") and not function):
        file = name.removesuffix(":")
        raise BlockbusterError(message=f"{file}: which function? write {file}:function")
    if not colon or not path.endswith(".py"):
        return examples.find(name)
    found = getattr(_module(Path(path)), function, None)
    if not callable(found):
        raise BlockbusterError(message=f"{name}: {path} has no function {function}")
    with _sentences(Path(path)):
        return _program(name, found, function)


def _program(name: str, found: Callable[..., Any], function: str) -> ArrayProgram | Model:
    parameters = inspect.signature(found).parameters.values()
    if parameters:
        specs = _specs(name, found, list(parameters))
        return trace(_only(found, list(specs)), *specs.values(), name=function)
    made = found()
    if isinstance(made, ArrayProgram):
        return made
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        model, inputs = made
        return model, inputs if isinstance(inputs, tuple | list) else (inputs,)
    raise _no_program(name, made)


def _no_program(name: str, made: object) -> BlockbusterError:
    kind = type(made).__name__
    message = f"{name}: it takes nothing, so it must return an array program, not a {kind}"
    return BlockbusterError(message=message)


def _specs(name: str, found: Callable[..., Any], parameters: list[Parameter]) -> dict[str, Any]:
    """The axes of each parameter that has some; the others have a default."""
    specs = {}
    for parameter in parameters:
        spec = _spec(found, parameter.annotation)
        if spec is not None:
            specs[parameter.name] = spec
        elif parameter.default is Parameter.empty:
            message = f"{name}: say which axes {parameter.name} has, as in {parameter.name}: 'M D'"
            raise BlockbusterError(message=message)
    return specs


def _spec(found: Callable[..., Any], annotation: Any) -> Any:
    """An annotation as a spec, or None for one that has no axes.

    Under `from __future__ import annotations` a spec is quoted twice, and a type once.
    """
    if isinstance(annotation, tuple | ArraySpec):
        return annotation
    if not isinstance(annotation, str) or not annotation:
        return None
    bare = annotation.strip("'\"")
    flags = getattr(getattr(found, "__code__", None), "co_flags", 0)
    is_type = flags & __future__.annotations.compiler_flag and bare == annotation
    return None if is_type else bare


def _only(found: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """A function of some of the parameters: the others keep their defaults."""
    signature = inspect.signature(found)
    kept = [signature.parameters[name] for name in names]

    @wraps(found)
    def function(*given: Any, **named: Any) -> Any:
        bound = signature.replace(parameters=kept).bind(*given, **named)
        all_of_it = inspect.BoundArguments(signature, bound.arguments)
        all_of_it.apply_defaults()
        return found(*all_of_it.args, **all_of_it.kwargs)

    function.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return function


def _module(path: Path) -> ModuleType:
    if not path.exists():
        raise BlockbusterError(message=f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _sentences(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Turns errors of a user's file into sentences that name the line."""
    try:
        yield
    except BlockbusterError:
        raise
    except (Exception, SystemExit) as error:
        message = f"{path}, line {_line(path, error)}: {_kind(error)}"
        raise BlockbusterError(message=message) from error


def _kind(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    first = (text.strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _line(path: Path, error: BaseException) -> int:
    """The last line of the file that was running."""
    own = str(path.absolute())
    if isinstance(error, SyntaxError) and error.filename == own:
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == own and f.lineno]
    return lines[-1] if lines else 1
