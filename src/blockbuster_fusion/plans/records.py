"""Dataclasses as plain data for JSON, and back; damaged data is refused with its place."""

import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from blockbuster_fusion.errors import BadConfig, BadPlan
from blockbuster_fusion.schedule.config import Config

T = TypeVar("T")

WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
WIDTH = 100
"""The columns of a line of text."""


def to_data(record: Any) -> Any:
    """A record as plain data: fields in order, without those that have their default."""
    if isinstance(record, Config):
        return record.data()
    if is_dataclass(record):
        pairs = [(field, getattr(record, field.name)) for field in fields(record)]
        return {f.name: to_data(value) for f, value in pairs if not _is_default(f, value)}
    if isinstance(record, tuple | list):
        return [to_data(x) for x in record]
    if isinstance(record, Mapping):
        return {str(key): to_data(value) for key, value in record.items()}
    return record


def from_data(kind: type[T], data: Any, place: str) -> T:
    """The record of a type that some data stands for, or BadPlan."""
    made: T = _made(kind, data, place)
    return made


def to_text(data: Any, indent: int = 0, before: int = 0) -> str:
    """Data as JSON in which a list or an object takes one line if it fits.

    `before` is the number of columns that its line has already.
    """
    line = _line(data)
    if len(line) + before <= WIDTH or not isinstance(data, list | dict) or not data:
        return line
    space = " " * (indent + 2)
    if isinstance(data, dict):
        names = [f"{_line(name)}: " for name in data]
        shown = zip(names, data.values(), strict=True)
        inner = [
            f"{space}{name}{to_text(x, indent + 2, indent + 3 + len(name))}" for name, x in shown
        ]
        return "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"
    inner = [f"{space}{to_text(x, indent + 2, indent + 3)}" for x in data]
    return "[\n" + ",\n".join(inner) + "\n" + " " * indent + "]"


def _line(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def _is_default(field: "Field[Any]", value: Any) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default)
    return field.default_factory is not MISSING and bool(value == field.default_factory())


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _made(kind: Any, data: Any, place: str) -> Any:
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (wanted,) = [x for x in inside if x is not type(None)]
        return None if data is None else _made(wanted, data, place)
    if origin is Literal:
        if data not in inside or not isinstance(data, str):
            raise _wrong(place, f"one of {', '.join(inside)}", data)
        return data
    if origin is tuple:
        if not isinstance(data, list):
            raise _wrong(place, "a list", data)
        return tuple(_made(inside[0], x, f"{place}[{n}]") for n, x in enumerate(data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise _wrong(place, "an object", data)
        return {name: _made(inside[1], x, f"{place}.{name}") for name, x in data.items()}
    if kind is Config:
        try:
            return Config.from_data(data)
        except BadConfig as error:
            raise BadPlan(place=place, problem=str(error)) from None
    return _record(kind, data, place) if is_dataclass(kind) else _plain(kind, data, place)


def _record(kind: Any, data: Any, place: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(place, "an object", data)
    known = {field.name: field for field in fields(kind)}
    for name in data:
        if name not in known:
            raise BadPlan(place=f"{place}.{name}", problem="there is no such field")
    hints, given = _types(kind), dict[str, Any]()
    for name, field in known.items():
        if name in data:
            given[name] = _made(hints[name], data[name], f"{place}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise BadPlan(place=f"{place}.{name}", problem="it is missing")
    return kind(**given)


def _plain(kind: Any, data: Any, place: str) -> Any:
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    if kind is float and is_number and math.isfinite(data):
        return float(data)
    if kind is not float and type(data) is kind:
        return data
    raise _wrong(place, WORDS[kind], data)


def _wrong(place: str, wanted: str, data: Any) -> BadPlan:
    shown = "an object" if isinstance(data, dict) else repr(data)
    shown = "a list" if isinstance(data, Sequence) and not isinstance(data, str) else shown
    return BadPlan(place=place, problem=f"{wanted} is wanted, and {shown} is given")
