"""PyTorch's operators that write into given memory, called from C between kernels.

The interface in C that PyTorch has for compiled models takes handles of tensors. A handle is made
of an address and kept, with its address, for the next call. A call takes the kept handle away while
it uses it, so that threads never share one. The handles own no memory. Products of matrices are
functions of their own there; all other operators are called by name, with arguments on a stack.
"""

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
WHOLE = ("IntType", "SymIntType", "BoolType")
PLAIN, TENSOR, OPTIONAL, LIST = range(4)
"""The kinds of arguments on a stack: a number, an operand, one that might be none, or several."""


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

    @property
    def given(self) -> list[int]:
        """The keys of the lengths that a call gives."""
        return [key for x in self.operands for key in x.given if key is not None]


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
) -> LibraryCall | None:
    """The call of an operator that gives back an operand that it has written; None if C has none.

    The arguments are in the order of its schema, and those that are left out have their defaults.
    """
    wide = max((len(x.shape) for x in operands), default=0)
    if len(operands) > MOST_OPERANDS or wide > MOST_RANK or None in callers():
        return None
    wanted = operator._schema.arguments
    given = [*arguments, *(x.default_value for x in wanted[len(arguments) :])]
    made = [_on_stack(x, a.type) for x, a in zip(given, wanted, strict=True)]
    known = tuple(tuple(x) for x in made if x is not None)
    if len(known) != len(made):
        return None
    name = operator._schema.name, operator._schema.overload_name
    return LibraryCall(str(operator), 0, operands, device, name, known)


def _on_stack(x: Any, kind: Any) -> list[int] | None:
    """An argument of some type as kinds and numbers; None if C does not know such."""
    if isinstance(kind, torch.OptionalType):
        inner = None if x is None else _on_stack(x, kind.getElementType())
        return [PLAIN, 0] if x is None else None if inner is None else [OPTIONAL, 0, *inner]
    if isinstance(kind, torch.ListType):
        items = [_on_stack(item, kind.getElementType()) for item in x]
        known = [item for item in items if item is not None]
        inside = [n for item in known for n in item]
        return [LIST, len(items), *inside] if len(known) == len(items) else None
    name = kind.kind()
    if isinstance(x, At):
        return [TENSOR, x.number] if name == "TensorType" else None
    if name == "FloatType" and isinstance(x, int | float):
        return [PLAIN, *struct.unpack("q", struct.pack("d", x))]
    return [PLAIN, int(x)] if name in WHOLE and isinstance(x, int) else None


class Call(ctypes.Structure):
    """A call as C has it."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("rank", ctypes.c_int64 * MOST_OPERANDS),
        ("shape", ctypes.c_void_p * MOST_OPERANDS),
        ("strides", ctypes.c_void_p * MOST_OPERANDS),
        ("given", ctypes.c_void_p * MOST_OPERANDS),
        ("order", ctypes.c_void_p * MOST_OPERANDS),
        ("base", ctypes.c_int64 * MOST_OPERANDS),
        ("offset", ctypes.c_int64 * MOST_OPERANDS),
        ("dtype", ctypes.c_int32 * MOST_OPERANDS),
        ("device", ctypes.c_int32 * 2),
        ("kept", ctypes.c_void_p * MOST_OPERANDS),
        ("operator", ctypes.c_char_p),
        ("overload", ctypes.c_char_p),
        ("arguments", ctypes.c_void_p),
        ("argument_count", ctypes.c_int64),
    )


def _abi() -> int:
    """The number of PyTorch's version in its interface in C."""
    major, minor = (int(x) for x in torch.__version__.split(".")[:2])
    return major << 56 | minor << 48


SOURCE = f"""\
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {{ PLAIN, TENSOR, OPTIONAL, LIST }};
struct kept {{
    int64_t address, mode, shape[{MOST_RANK}];
    void *handle;
}};
struct call {{
    void *function;
    int64_t count, rank[{MOST_OPERANDS}];
    const int64_t *shape[{MOST_OPERANDS}], *strides[{MOST_OPERANDS}], *given[{MOST_OPERANDS}];
    const int64_t *order[{MOST_OPERANDS}];
    int64_t base[{MOST_OPERANDS}], offset[{MOST_OPERANDS}];
    int32_t dtype[{MOST_OPERANDS}], device[2];
    struct kept *kept[{MOST_OPERANDS}];
    const char *operator, *overload;
    const int64_t *arguments;
    int64_t argument_count;
}};
static int32_t (*make_tensor)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t,
                              int32_t, int32_t, void **);
static int32_t (*delete_tensor)(void *);
static int32_t (*call_operator)(const char *, const char *, uint64_t *, uint64_t);
static int32_t (*share_tensor)(void *, void **), (*make_value)(uint64_t **);
static int32_t (*make_list)(size_t, void **), (*append)(void *, uint64_t);

void use_tensors(void *make, void *delete) {{
    *(void **)&make_tensor = make;
    *(void **)&delete_tensor = delete;
}}

void use_operators(void *call, void *share, void *value, void *list, void *push) {{
    *(void **)&call_operator = call;
    *(void **)&share_tensor = share;
    *(void **)&make_value = value;
    *(void **)&make_list = list;
    *(void **)&append = push;
}}

static void dropped(struct kept *one) {{
    if (one && one->handle) delete_tensor(one->handle);
    free(one);
}}

void forget(struct call *one) {{
    for (int64_t i = 0; i < one->count; i++)
        dropped(__atomic_exchange_n(&one->kept[i], 0, __ATOMIC_ACQ_REL));
}}

/* The handle of an operand at an address, which no other thread has. A handle that was made in
   inference mode serves there alone. */
static struct kept *taken(struct call *one, int64_t i, int64_t address, const int64_t *numbers,
                          int64_t mode) {{
    const int64_t rank = one->rank[i], *given = one->given[i], *strides = one->strides[i];
    int64_t shape[{MOST_RANK}] = {{0}}, dense[{MOST_RANK}], step = 1;
    for (int64_t j = 0; j < rank; j++)
        shape[j] = given && given[j] >= 0 ? numbers[given[j]] : one->shape[i][j];
    for (int64_t j = rank; j-- > 0;) {{
        const int64_t at = one->order[i] ? one->order[i][j] : j;
        dense[at] = step;
        step *= shape[at];
    }}
    struct kept *found = __atomic_exchange_n(&one->kept[i], 0, __ATOMIC_ACQ_REL);
    if (found && found->address == address && found->mode == mode &&
        !memcmp(found->shape, shape, sizeof(shape)))
        return found;
    dropped(found);
    found = calloc(1, sizeof(*found));
    if (!found) return 0;
    found->address = address;
    found->mode = mode;
    memcpy(found->shape, shape, sizeof(shape));
    if (!make_tensor((void *)address, rank, shape, strides ? strides : dense, 0, one->dtype[i],
                     one->device[0], one->device[1], &found->handle))
        return found;
    free(found);
    return 0;
}}

/* An argument for the stack of an operator, which takes it over. */
static int argument(const int64_t **code, void *const *handles, uint64_t *made) {{
    const int64_t kind = (*code)[0], value = (*code)[1];
    void *found = 0;
    uint64_t *inside = 0, item;
    *code += 2;
    if (kind == PLAIN) {{
        *made = (uint64_t)value;
        return 0;
    }}
    if (kind == OPTIONAL) {{
        if (make_value(&inside) || argument(code, handles, inside)) return 1;
        *made = (uint64_t)inside;
        return 0;
    }}
    if (kind == TENSOR ? share_tensor(handles[value], &found) : make_list(value, &found)) return 1;
    for (int64_t i = 0; kind == LIST && i < value; i++)
        if (argument(code, handles, &item) || append(found, item)) return 1;
    *made = (uint64_t)found;
    return 0;
}}

/* Calls an operator by its name; its result is one of its operands. */
static int by_name(const struct call *one, void *const *handles) {{
    uint64_t stack[one->argument_count + 1];
    const int64_t *code = one->arguments;
    for (int64_t i = 0; i < one->argument_count; i++)
        if (argument(&code, handles, &stack[i])) return 1;
    if (call_operator(one->operator, one->overload, stack, {_abi()}ull)) return 1;
    delete_tensor((void *)stack[0]);
    return 0;
}}

static int called(struct call *one, const int64_t *addresses, const int64_t *numbers,
                  int64_t mode) {{
    struct kept *kept[{MOST_OPERANDS}] = {{0}};
    void *h[{MOST_OPERANDS}] = {{0}};
    int failed = 0;
    for (int64_t i = 0; i < one->count && !failed; i++) {{
        kept[i] = taken(one, i, addresses[one->base[i]] + one->offset[i], numbers, mode);
        if (kept[i]) h[i] = kept[i]->handle;
        else failed = 1;
    }}
    if (!failed && one->operator) failed = by_name(one, h);
    else if (!failed && one->count == 3)
        failed = ((int32_t(*)(void *, void *, void *))one->function)(h[0], h[1], h[2]);
    else if (!failed)
        failed = ((int32_t(*)(void *, void *, void *, void *, double, double))one->function)(
            h[0], h[1], h[2], h[3], 1.0, 1.0);
    for (int64_t i = 0; i < one->count; i++)
        if (kept[i]) dropped(__atomic_exchange_n(&one->kept[i], kept[i], __ATOMIC_ACQ_REL));
    return failed;
}}
"""


def filled(
    call: LibraryCall, places: list[tuple[int, int]], given: Mapping[int, int]
) -> tuple[Call, list[Any]]:
    """A call as C has it, and the memory that it points to.

    `places` are bases and offsets, and `given` has the places of given lengths.
    """
    made, held = Call(), list[Any]()
    made.function, made.count = call.function, len(call.operands)
    for at, (operand, (base, offset)) in enumerate(zip(call.operands, places, strict=True)):
        shape = (ctypes.c_int64 * len(operand.shape))(*operand.shape)
        held.append(shape)
        made.shape[at] = ctypes.addressof(shape)
        if operand.strides is not None:
            strides = (ctypes.c_int64 * len(shape))(*operand.strides)
            held.append(strides)
            made.strides[at] = ctypes.addressof(strides)
        if operand.order:
            order = (ctypes.c_int64 * len(shape))(*operand.order)
            held.append(order)
            made.order[at] = ctypes.addressof(order)
        if operand.given:
            keys = [-1 if key is None else given[key] for key in operand.given]
            lengths = (ctypes.c_int64 * len(shape))(*keys)
            held.append(lengths)
            made.given[at] = ctypes.addressof(lengths)
        made.rank[at], made.base[at], made.offset[at] = len(shape), base, offset
        made.dtype[at] = _number(f"dtype_{str(operand.dtype).removeprefix('torch.')}")
    if call.arguments:
        name, overload = (x.encode() for x in call.overload)
        code = [n for x in call.arguments for n in x]
        packed = (ctypes.c_int64 * len(code))(*code)
        held += [name, overload, packed]
        made.operator, made.overload = name, overload
        made.arguments, made.argument_count = ctypes.addressof(packed), len(call.arguments)
    made.device[:] = [_number(f"device_type_{call.device.type}"), call.device.index or 0]
    return made, held


def makers() -> tuple[int, int]:
    """The addresses of the functions that make and delete handles."""
    made = _address("cpu", "create_tensor_from_blob"), _address("cpu", "delete_tensor_object")
    assert made[0] is not None
    assert made[1] is not None
    return made[0], made[1]


def callers() -> tuple[int | None, ...]:
    """The addresses of the functions that call operators by name, and make their arguments."""
    own = (_address("cpu", "torch_call_dispatcher", ""), _address("cpu", "new_tensor_handle"))
    others = ("torch_new_stable_ivalue", "torch_new_list_reserve_size", "torch_list_push_back")
    return (*own, *(_address("cpu", name, "") for name in others))


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
def _number(name: str) -> int:
    """A constant of the interface: it has functions without arguments for these."""
    return int(getattr(_library("cpu"), f"aoti_torch_{name}")())
