"""PyTorch's operators, called from C between kernels.

The interface in C that PyTorch has for compiled models takes handles of tensors. Products of
matrices are functions of their own there, which write into given memory. All other operators are
called by name, with arguments on a stack (library_call_source.py). Their results are handles that
own memory: a call keeps those that later launches read, and drops the others.
"""

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

PRODUCTS = {
    torch.ops.aten.mm.default: "mm_out",
    torch.ops.aten.bmm.default: "bmm_out",
    torch.ops.aten.addmm.default: "addmm_out",
    torch.ops.aten.baddbmm.default: "baddbmm_out",
}
"""The operators, and their functions that write the result into a given tensor."""
MOST_OPERANDS, MOST_RANK = 8, 6
INTEGERS = ("IntType", "SymIntType", "BoolType")
PLAIN, TENSOR, OPTIONAL, LIST, STRING = range(5)
"""The kinds of arguments on a stack: a number, an operand, one that might be none, several, or
letters."""
IGNORED, DROPPED, KEPT = range(3)
"""The kinds of results: no tensor, one that nothing reads, or one that is read."""


@dataclass(frozen=True, slots=True)
class Operand:
    """The shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """None for a dense array."""
    dtype: torch.dtype
    given: tuple[int | None, ...] = ()
    """The keys of lengths that a call gives in place of those in the shape, if there are any."""
    order: tuple[int, ...] = ()
    """The dimensions of a dense array in the order of memory; () if they are in order."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result that PyTorch allocates: its layout, and the places of its address and handle."""

    number: int
    """Its number among the results of the operator."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    key: int
    """The slot that it is the value of."""
    address: int = 0
    handle: int = 0
    """The numbers of both among the addresses of a call; C writes them."""


@dataclass(frozen=True, slots=True)
class Release:
    """The end of results that nothing reads any more, by the numbers of their handles."""

    handles: tuple[int, ...]
    name: str = "release"


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A call of an operator; the first operand of a product is the result."""

    name: str
    function: int
    """The address of the function in C; 0 for an operator that is called by name."""
    operands: tuple[Operand, ...]
    device: torch.device
    overload: tuple[str, str] = ("", "")
    """The names of an operator and of its overload."""
    arguments: tuple[tuple[int, ...], ...] = ()
    """The arguments on the stack, each as kinds and numbers in turns."""
    returns: tuple[int, ...] = ()
    """The kinds of the results; those that are kept are in `results`, in order."""
    results: tuple[Result, ...] = ()
    held: tuple[Any, ...] = field(default=(), compare=False)
    """The letters that arguments point to."""
    again: Callable[[Sequence[torch.Tensor]], Any] | None = field(default=None, compare=False)
    """The operator in Python, as a function of its operands."""

    @property
    def is_repeatable(self) -> bool:
        """True if the operator can be called from Python, with arrays of known strides."""
        return self.again is not None and all(x.strides is not None for x in self.operands)

    @property
    def given(self) -> list[int]:
        """The keys of the lengths that a call gives."""
        return [key for x in self.operands for key in x.given if key is not None]

    def placed(self, at: Callable[[int], tuple[int, int]]) -> "LibraryCall":
        """The call with places for its results; `at` gives address and handle for a slot."""
        made = (replace(x, address=a, handle=h) for x in self.results for a, h in [at(x.key)])
        return replace(self, results=tuple(made))


def library_call(
    operator: Any, operands: tuple[Operand, ...], device: torch.device
) -> LibraryCall | None:
    """The call of an operator; None if PyTorch has no function in C for it."""
    name = PRODUCTS.get(operator)
    function = None if name is None else _address(device.type, f"{device.type}_{name}")
    if name is None or function is None:
        return None
    return LibraryCall(str(operator), function, operands, device)


@dataclass(frozen=True, slots=True)
class At:
    """An operand among the arguments of an operator, by its number."""

    number: int


def named_call(
    operator: OpOverload,
    arguments: Sequence[Any],
    operands: tuple[Operand, ...],
    device: torch.device,
    results: tuple[Result, ...] = (),
) -> LibraryCall | None:
    """The call of an operator by name; None if C cannot make it.

    The arguments are in the order of its schema, and those that are left out have their defaults.
    `results` are those that are kept.
    """
    wide = max((len(x.shape) for x in operands), default=0)
    if len(operands) > MOST_OPERANDS or wide > MOST_RANK or None in callers():
        return None
    dtypes = {*(x.dtype for x in operands), *(x.dtype for x in results)}
    if None in map(number_of_dtype, dtypes):
        return None
    wanted = operator._schema.arguments
    given = [*arguments, *(x.default_value for x in wanted[len(arguments) :])]
    held: list[Any] = []
    made = [_on_stack(x, a.real_type, held) for x, a in zip(given, wanted, strict=True)]
    known = tuple(tuple(x) for x in made if x is not None)
    if len(known) != len(made):
        return None
    kept = {x.number for x in results}
    kinds = [x.real_type.kind() for x in operator._schema.returns]
    if any(kind != "TensorType" and kind not in INTEGERS for kind in kinds):
        return None
    returns = tuple(
        IGNORED if kind != "TensorType" else KEPT if number in kept else DROPPED
        for number, kind in enumerate(kinds)
    )
    name = operator._schema.name, operator._schema.overload_name
    text, ordered = str(operator), tuple(sorted(results, key=lambda x: x.number))
    again = partial(_in_python, operator, given)
    return LibraryCall(text, 0, operands, device, name, known, returns, ordered, tuple(held), again)


def _in_python(operator: OpOverload, given: Sequence[Any], operands: Sequence[torch.Tensor]) -> Any:
    """The result of an operator, called from Python."""

    def filled(x: Any) -> Any:
        if isinstance(x, At):
            return operands[x.number]
        return [*map(filled, x)] if isinstance(x, list) else x

    pairs = [*zip(operator._schema.arguments, map(filled, given), strict=True)]
    named = {argument.name: x for argument, x in pairs if argument.kwarg_only}
    return operator(*(x for argument, x in pairs if not argument.kwarg_only), **named)


def _on_stack(x: Any, kind: Any, held: list[Any]) -> list[int] | None:
    """An argument of some type as kinds and numbers; None if C does not know such.

    They may point to what is added to `held`.
    """
    if isinstance(kind, torch.OptionalType):
        inner = None if x is None else _on_stack(x, kind.getElementType(), held)
        return [PLAIN, 0] if x is None else None if inner is None else [OPTIONAL, 0, *inner]
    if isinstance(kind, torch.ListType):
        if not isinstance(x, list | tuple):
            return None
        items = [_on_stack(item, kind.getElementType(), held) for item in x]
        known = [item for item in items if item is not None]
        inside = [n for item in known for n in item]
        return [LIST, len(items), *inside] if len(known) == len(items) else None
    name = kind.kind()
    if isinstance(x, At):
        return [TENSOR, x.number] if name == "TensorType" else None
    if name == "FloatType" and isinstance(x, int | float):
        return [PLAIN, *struct.unpack("q", struct.pack("d", x))]
    if name == "StringType" and isinstance(x, str):
        held.append(ctypes.create_string_buffer(x.encode()))
        return [STRING, ctypes.addressof(held[-1])]
    if name == "ScalarTypeType" and isinstance(x, torch.dtype):
        number = number_of_dtype(x)
        return None if number is None else [PLAIN, number]
    return [PLAIN, int(x)] if name in INTEGERS and isinstance(x, int) else None


def makers() -> tuple[int, int]:
    """The addresses of the functions that make and delete handles."""
    made = _address("cpu", "create_tensor_from_blob"), _address("cpu", "delete_tensor_object")
    assert made[0] is not None
    assert made[1] is not None
    return made[0], made[1]


CALLERS = (
    *("torch_call_dispatcher", "aoti_torch_new_tensor_handle", "_Znwm"),
    *("torch_new_list_reserve_size", "torch_list_push_back", "torch_new_string_handle"),
    *("aoti_torch_get_data_ptr", "aoti_torch_get_dim", "aoti_torch_get_sizes"),
    *("aoti_torch_get_strides", "aoti_torch_get_dtype"),
)
"""Functions that call operators by name, make their arguments, and look at their results.

PyTorch frees an argument that might be none as an object of C++: `_Znwm` allocates such.
"""


@cache
def callers() -> tuple[int | None, ...]:
    """The addresses of these functions; None for those that PyTorch does not have."""
    return tuple(_address("cpu", name, "") for name in CALLERS)


def tensor_of(handle: int) -> torch.Tensor:
    """The tensor of a handle, which is used up."""
    capsule = _CAPSULE_OF(handle, None, None)
    # the function for a single one shares the tensor, and does not end the handle
    (found,) = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([capsule])
    return found


def array_at(address: int, operand: Operand, device: torch.device) -> torch.Tensor:
    """Memory as a tensor with the layout of an operand; it owns none."""
    assert operand.strides is not None
    lengths, number, made = ctypes.c_int64 * len(operand.shape), ctypes.c_int32, ctypes.c_void_p()
    kinds = (ctypes.c_void_p, ctypes.c_int64, lengths, lengths, ctypes.c_int64)
    result = ctypes.POINTER(ctypes.c_void_p)
    make = ctypes.CFUNCTYPE(number, *kinds, number, number, number, result)(makers()[0])
    where = number_of(f"device_type_{device.type}"), device.index or 0
    layout = (len(operand.shape), lengths(*operand.shape), lengths(*operand.strides), 0)
    failed = make(address, *layout, number_of_dtype(operand.dtype), *where, ctypes.byref(made))
    assert not failed
    assert made.value is not None
    return tensor_of(made.value)


def handle_of(x: torch.Tensor) -> int:
    """A handle that owns a tensor."""
    return int(_POINTER_IN(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(x), None))


_CAPSULE_OF = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_POINTER_IN = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@cache
def _library(kind: str) -> Any:
    folder = Path(torch.__file__).parent / "lib"
    found = sorted(folder.glob(f"libtorch_{kind}.*"))
    return ctypes.CDLL(str(found[0])) if found else None


@cache
def _address(kind: str, name: str, prefix: str = "aoti_torch_") -> int | None:
    """The address of a function of PyTorch's interface in C; None if it has no such function."""
    function = getattr(_library(kind), f"{prefix}{name}", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@cache
def number_of(name: str) -> int | None:
    """A constant of the interface: it has functions without arguments for these."""
    found = getattr(_library("cpu"), f"aoti_torch_{name}", None)
    return None if found is None else int(found())


def number_of_dtype(dtype: torch.dtype) -> int | None:
    """The number of a dtype in the interface; None if it has none."""
    return number_of(f"dtype_{str(dtype).removeprefix('torch.')}")
