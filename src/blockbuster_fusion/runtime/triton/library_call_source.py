"""Calls of PyTorch's operators in C: the source, and the structures that it reads.

The handle of an operand is made of an address and kept, with its address, for the next call. A call
takes the kept handle away while it uses it, so that threads never share one. Such handles own no
memory. Those of results do: they lie among the addresses of a call until they are released.
"""

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from blockbuster_fusion.runtime.triton.library_calls import (
    KEPT,
    MOST_OPERANDS,
    MOST_RANK,
    LibraryCall,
    number_of,
    number_of_dtype,
)

CODES = 2048
"""An upper bound of the codes of the driver's errors."""
UNFIT, REFUSED, DIFFERS = CODES - 1, CODES - 2, CODES - 3
"""The codes that say that no form of a kernel fits, that an operator of PyTorch's failed, and that
a result of one lies in memory otherwise than expected."""


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
        ("returns", ctypes.c_void_p),
        ("return_count", ctypes.c_int64),
    )


def _abi() -> int:
    """The number of PyTorch's version in its interface in C."""
    major, minor = (int(x) for x in torch.__version__.split(".")[:2])
    return major << 56 | minor << 48


SOURCE = f"""\
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {{ PLAIN, TENSOR, OPTIONAL, LIST, STRING }};
enum {{ IGNORED, DROPPED, KEPT }};
enum {{ UNFIT = {UNFIT}, REFUSED = {REFUSED}, DIFFERS = {DIFFERS} }};
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
    const int64_t *returns;
    int64_t return_count;
}};
static int32_t (*make_tensor)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t,
                              int32_t, int32_t, void **);
static int32_t (*delete_tensor)(void *);
static int32_t (*call_operator)(const char *, const char *, uint64_t *, uint64_t);
static int32_t (*share_tensor)(void *, void **);
static void *(*make_value)(size_t);
static int32_t (*make_list)(size_t, void **), (*append)(void *, uint64_t);
static int32_t (*make_string)(const char *, size_t, void **);
static int32_t (*data_of)(void *, void **), (*rank_of)(void *, int64_t *);
static int32_t (*sizes_of)(void *, int64_t **), (*strides_of)(void *, int64_t **);
static int32_t (*dtype_of)(void *, int32_t *);

void use_tensors(void *make, void *delete) {{
    *(void **)&make_tensor = make;
    *(void **)&delete_tensor = delete;
}}

/* The functions in the order of CALLERS. */
void use_operators(void *const *found) {{
    *(void **)&call_operator = found[0];
    *(void **)&share_tensor = found[1];
    *(void **)&make_value = found[2];
    *(void **)&make_list = found[3];
    *(void **)&append = found[4];
    *(void **)&make_string = found[5];
    *(void **)&data_of = found[6];
    *(void **)&rank_of = found[7];
    *(void **)&sizes_of = found[8];
    *(void **)&strides_of = found[9];
    *(void **)&dtype_of = found[10];
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
        inside = make_value(sizeof(*inside));
        *made = (uint64_t)inside;
        return argument(code, handles, inside);
    }}
    if (kind == TENSOR && share_tensor(handles[value], &found)) return 1;
    if (kind == LIST && make_list(value, &found)) return 1;
    if (kind == STRING && make_string((const char *)value, strlen((const char *)value), &found))
        return 1;
    for (int64_t i = 0; kind == LIST && i < value; i++)
        if (argument(code, handles, &item) || append(found, item)) return 1;
    *made = (uint64_t)found;
    return 0;
}}

/* 1 if a tensor lies in memory as expected: dtype, rank, shape and strides. The strides of an axis
   of length 1 mean nothing. */
static int lies(void *tensor, const int64_t *wanted) {{
    const int64_t rank = wanted[1], *shape = wanted + 2, *strides = shape + rank;
    int64_t found, *sizes, *steps;
    int32_t dtype;
    if (dtype_of(tensor, &dtype) || rank_of(tensor, &found)) return 0;
    if (dtype != wanted[0] || found != rank) return 0;
    if (sizes_of(tensor, &sizes) || strides_of(tensor, &steps)) return 0;
    for (int64_t i = 0; i < rank; i++)
        if (sizes[i] != shape[i] || (shape[i] > 1 && steps[i] != strides[i])) return 0;
    return 1;
}}

/* Keeps the results of an operator that are read, and drops the others. */
static int received(const struct call *one, const uint64_t *stack, int64_t *addresses) {{
    const int64_t *code = one->returns;
    int failed = 0;
    for (int64_t i = 0; i < one->return_count; i++) {{
        const int64_t kind = *code++;
        void *tensor = (void *)stack[i], *data = 0;
        if (kind == DROPPED) delete_tensor(tensor);
        if (kind != KEPT) continue;
        if (!lies(tensor, code + 2)) failed = DIFFERS;
        if (data_of(tensor, &data)) failed = REFUSED;
        addresses[code[0]] = (int64_t)data;
        addresses[code[1]] = (int64_t)tensor;
        code += 4 + 2 * code[3];
    }}
    return failed;
}}

/* Calls an operator by its name. */
static int by_name(const struct call *one, void *const *handles, int64_t *addresses) {{
    const int64_t most =
        one->argument_count > one->return_count ? one->argument_count : one->return_count;
    uint64_t stack[most + 1];
    const int64_t *code = one->arguments;
    for (int64_t i = 0; i < one->argument_count; i++)
        if (argument(&code, handles, &stack[i])) return REFUSED;
    if (call_operator(one->operator, one->overload, stack, {_abi()}ull)) return REFUSED;
    return received(one, stack, addresses);
}}

/* Drops results that nothing reads any more. */
void release(int64_t *addresses, const int64_t *handles, int64_t count) {{
    for (int64_t i = 0; i < count; i++) {{
        void *tensor = (void *)addresses[handles[i]];
        addresses[handles[i]] = 0;
        if (tensor) delete_tensor(tensor);
    }}
}}

static int called(struct call *one, int64_t *addresses, const int64_t *numbers,
                  int64_t mode) {{
    struct kept *kept[{MOST_OPERANDS}] = {{0}};
    void *h[{MOST_OPERANDS}] = {{0}};
    int failed = 0;
    for (int64_t i = 0; i < one->count && !failed; i++) {{
        kept[i] = taken(one, i, addresses[one->base[i]] + one->offset[i], numbers, mode);
        if (kept[i]) h[i] = kept[i]->handle;
        else failed = REFUSED;
    }}
    if (!failed && one->operator) failed = by_name(one, h, addresses);
    else if (!failed && one->count == 3) {{
        if (((int32_t(*)(void *, void *, void *))one->function)(h[0], h[1], h[2]))
            failed = REFUSED;
    }} else if (!failed) {{
        if (((int32_t(*)(void *, void *, void *, void *, double, double))one->function)(
                h[0], h[1], h[2], h[3], 1.0, 1.0))
            failed = REFUSED;
    }}
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
        made.dtype[at] = _dtype_number(operand.dtype)
    if not call.function:
        name, overload = (x.encode() for x in call.overload)
        code = _numbers(n for x in call.arguments for n in x)
        returns = _numbers(_returns(call))
        held += [name, overload, code, returns, call.held]
        made.operator, made.overload = name, overload
        made.arguments, made.argument_count = ctypes.addressof(code), len(call.arguments)
        made.returns, made.return_count = ctypes.addressof(returns), len(call.returns)
    made.device[:] = [number_of(f"device_type_{call.device.type}"), call.device.index or 0]
    return made, held


def _returns(call: LibraryCall) -> Iterator[int]:
    """The results as C reads them: kinds, and for those that are kept their places and layouts."""
    results = iter(call.results)
    for kind in call.returns:
        yield kind
        if kind == KEPT:
            x = next(results)
            yield from (x.address, x.handle, _dtype_number(x.dtype), len(x.shape))
            yield from (*x.shape, *x.strides)


def _numbers(numbers: Iterable[int]) -> Any:
    values = [*numbers]
    return (ctypes.c_int64 * len(values))(*values)


def _dtype_number(dtype: torch.dtype) -> int:
    found = number_of_dtype(dtype)
    assert found is not None
    return found
