"""The prelude of generated C: types, macros and functions, of which a program has those it uses."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import product

from blockbuster_fusion.nest.passes.cascade_sums import FEW
from blockbuster_fusion.printers.c import prelude_arithmetic as arithmetic
from blockbuster_fusion.printers.c import prelude_dots as dots
from blockbuster_fusion.printers.c import prelude_few_rows as few_rows
from blockbuster_fusion.printers.c import prelude_moves as moves
from blockbuster_fusion.printers.c import prelude_products as products
from blockbuster_fusion.printers.c.expressions import Need
from blockbuster_fusion.printers.c.mathematics.parts import FUNCTIONS, OF_BATCHES, mathematics
from blockbuster_fusion.printers.operators import C_STORED, C_TYPES

HEADER = """\
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define RESTRICT __restrict__
#define MIN(a, b) ((int64_t)(a) < (int64_t)(b) ? (int64_t)(a) : (int64_t)(b))
#define MAX(a, b) ((int64_t)(a) > (int64_t)(b) ? (int64_t)(a) : (int64_t)(b))
#define BLOCKS(extent, block) (((extent) + (block) - 1) / (block))
/* A large function: part of this file, or compiled once for many programs. With LINKED 0 it is
   defined for them, and with LINKED 1 it is declared only. */
#if defined(LINKED)
#define LARGE __attribute__((visibility("hidden")))
#else
#define LARGE static __attribute__((noinline))
#endif
"""

LANES = """\
/* Bytes in a vector of the machine, and the rows and vectors of a tile in its registers. */
#if defined(__AVX512F__)
enum { VECTOR = 64, ROWS = 6, WIDE = 4 };
#elif defined(__AVX__)
enum { VECTOR = 32, ROWS = 6, WIDE = 2 };
#elif defined(__aarch64__)
enum { VECTOR = 16, ROWS = 6, WIDE = 4 };
#else
enum { VECTOR = 16, ROWS = 6, WIDE = 2 };
#endif
/* Keeps a vector in a register; compilers may read it from memory for every use of it. */
#if defined(__AVX512F__)
#define IN_REGISTER(vector) __asm__("" : "+v"(vector))
#elif defined(__SSE__)
#define IN_REGISTER(vector) __asm__("" : "+x"(vector))
#elif defined(__aarch64__)
#define IN_REGISTER(vector) __asm__("" : "+w"(vector))
#else
#define IN_REGISTER(vector)
#endif
#define LANES(type) (VECTOR / (int64_t)sizeof(type))
/* Rows of a tile are whole vectors, an odd number of them, so that they spread over the cache. */
#define PADDED(n, type) ((BLOCKS(n, LANES(type)) | 1) * LANES(type))
"""

MEMORY = """\
/* Reserves n elements in the memory of a thread; returns the offset of the first. */
INLINE size_t reserve(size_t *bytes, int64_t n, size_t size) {
    size_t at = *bytes;
    *bytes += (n * size + 63) / 64 * 64;
    return at;
}

static char *allocate(size_t bytes) {
    char *memory = (char *)aligned_alloc(64, bytes + 64);
    if (memory) memset(memory, 0, bytes + 64);
    return memory;
}

#if defined(__cplusplus)
extern "C"
#endif
int madvise(void *, size_t, int);

/* Asks for large pages for a result of many bytes: fresh memory then comes with few page faults. */
INLINE void want_large_pages(const void *result, int64_t bytes) {
#if defined(__linux__)
    enum { MADV_HUGE = 14 };
    const uintptr_t page = 2 << 20, begin = ((uintptr_t)result + page - 1) & -page;
    const uintptr_t end = ((uintptr_t)result + bytes) & -page;
    if (bytes >= 4 << 20 && end > begin) madvise((void *)begin, end - begin, MADV_HUGE);
#else
    (void)result, (void)bytes;
#endif
}

/* The number of this thread in its team. */
#if !defined(_OPENMP)
#define THREAD 0
#elif defined(__cplusplus)
extern "C" int omp_get_thread_num(void);
#define THREAD omp_get_thread_num()
#else
int omp_get_thread_num(void);
#define THREAD omp_get_thread_num()
#endif

/* The length of blocks up to `most`: shorter if some threads would have none. */
INLINE int64_t block_of(int64_t length, int64_t most, int64_t threads) {
    return MIN(most, MAX(1, BLOCKS(BLOCKS(length, threads), 32)) * 32);
}

/* The programs that a thread takes at a time: neighbours, and about 8 times for each thread. */
INLINE int64_t chunk_of(int64_t programs, int64_t threads) {
    return MAX(1, programs / (8 * MAX(1, threads)));
}

/* The same program inside of a chunk; after its end, the first of a chunk that no thread took. */
INLINE int64_t claim(int64_t *next, int64_t program, int64_t chunk) {
    if (program % chunk) return program;
#pragma omp atomic capture
    {
        program = *next;
        *next += chunk;
    }
    return program;
}
"""

_RUNS = f"""\
/* The number of blocks of a partial sum in a long loop: about the square root of all blocks. */
INLINE int64_t run_length(int64_t blocks) {{
    int64_t run = 8;
    if (blocks <= {FEW}) return 0;
    while (run * run < blocks) run *= 2;
    return run;
}}
"""

OUTSIDE = 2
"""The return value of a kernel in which an index of a lookup was out of range."""

_PLACES = """\
/* True if an index is in the range of an axis; `outside` is set if one is not. */
INLINE int on_axis(int64_t place, int64_t length, int *outside) {
    const int is_on = (uint64_t)place < (uint64_t)length;
    *outside |= !is_on;
    return is_on;
}
"""

_PUSH = """\
/* Writes results past the caches, where they would find no room: in whole lines of a cache. */
#if defined(__SSE2__)
enum { CAN_PUSH = 1, PUSHED = VECTOR == 64 ? 64 : 16 };
typedef long long pushed_vector __attribute__((vector_size(PUSHED), may_alias));
typedef long long read_vector __attribute__((vector_size(PUSHED), aligned(1), may_alias));
#if defined(__clang__)
#define PUSH(to, vector) __builtin_nontemporal_store(vector, to)
#elif defined(__AVX512F__)
#define PUSH(to, vector) __builtin_ia32_movntdq512(to, vector)
#else
#define PUSH(to, vector) __builtin_ia32_movntdq(to, vector)
#endif
static __attribute__((noinline, unused)) void push(void *to, const void *from, int64_t bytes) {
    char *x = (char *)to;
    const char *y = (const char *)from;
    const int64_t head = MIN(bytes, -(uintptr_t)x & 63);
    memcpy(x, y, head);
    for (x += head, y += head, bytes -= head; bytes >= 64; x += 64, y += 64, bytes -= 64)
        for (int i = 0; i < 64; i += PUSHED)
            PUSH((pushed_vector *)(x + i), *(const read_vector *)(y + i));
    memcpy(x, y, bytes);
}
/* Others may read what was written. */
INLINE void pushed(void) { __builtin_ia32_sfence(); }
#else
enum { CAN_PUSH = 0 };
INLINE void push(void *to, const void *from, int64_t bytes) { memcpy(to, from, bytes); }
INLINE void pushed(void) {}
#endif
/* The bytes of the last cache, as the command of the compiler has them. */
#if !defined(LAST_CACHE)
#define LAST_CACHE (16 << 20)
#endif
"""

_BFLOAT16 = """\
typedef uint16_t bfloat16;
typedef uint32_t bfloat16_pair __attribute__((aligned(2), may_alias));

INLINE float widened_bfloat16(bfloat16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

INLINE bfloat16 narrowed_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
    return (bfloat16)((x != x ? quiet : rounded) >> 16);
}
"""

_DTYPES = ("float32", "float64", "int32", "int64", "bool")
_FLOATS, _WHOLE = ("float32", "float64"), ("int32", "int64")
_C_FLOATS, _C_WHOLE = ("float", "double"), ("int32_t", "int64_t")
_STORED_FLOATS = ("bfloat16", "_Float16", "float", "double")
_STORED = tuple(sorted({*C_STORED.values()}))
_HELD = tuple(sorted({*C_TYPES.values(), *_STORED}))


@dataclass(frozen=True, slots=True)
class PreludePart:
    """A part of the prelude: its text for some types, and all types that it exists for."""

    text: Callable[..., str]
    types: tuple[tuple[str, ...], ...] = ()
    builds_on: Callable[..., tuple[Need, ...]] = lambda *types: ()
    """The parts that it calls, for its types."""
    head: Callable[..., str] | None = None
    """The head of its function, for its types, if that takes a compiler long."""

    def written(self, need: Need) -> str:
        """The text for a need; that of a large function may be left to the linker."""
        types = need[1:]
        text = self.text(*types)
        if self.head is None:
            return text
        return f"#if LINKED /* {' '.join(need)} */\n{self.head(*types)};\n#else\n{text}#endif\n"


PARTS = {
    "loaded": PreludePart(few_rows.vector_loads, (_STORED_FLOATS, _C_FLOATS)),
    "lane_sum": PreludePart(few_rows.lane_sum, (_C_FLOATS,)),
    "few_rows": PreludePart(
        few_rows.few_rows,
        (_STORED_FLOATS, _C_FLOATS),
        lambda stored, held: (("loaded", stored, held), ("loaded", held, held), ("lane_sum", held)),
        head=few_rows.head,
    ),
    "contract": PreludePart(products.contraction, (_C_FLOATS,), head=products.head),
    "bfloat16_dots": PreludePart(
        few_rows.bfloat16_dots,
        builds_on=lambda: (("lane_sum", "float"),),
        head=few_rows.bfloat16_head,
    ),
    "few_dots": PreludePart(
        few_rows.few_dots,
        (("float", dots.PAIR),),
        lambda source: (("bfloat16_dots",),),
    ),
    "floordiv": PreludePart(arithmetic.floor_division, (_DTYPES,)),
    "load": PreludePart(moves.load, (_STORED, _HELD)),
    "pairs": PreludePart(
        dots.pairs,
        (dots.SOURCES,),
        lambda source: (("load", source, "bfloat16"),),
        head=dots.head_of_pairs,
    ),
    "dots": PreludePart(dots.dots, (dots.UNITS,), lambda unit: (("bfloat16",),), head=dots.head),
    "contract_pairs": PreludePart(
        dots.contraction,
        (dots.SOURCES, dots.UNITS),
        lambda source, unit: (("load", source, "bfloat16"), ("dots", unit)),
    ),
    "maximum": PreludePart(lambda dtype: arithmetic.extremum("maximum", dtype, ">"), (_DTYPES,)),
    "minimum": PreludePart(lambda dtype: arithmetic.extremum("minimum", dtype, "<"), (_DTYPES,)),
    "mod": PreludePart(arithmetic.modulo, (_DTYPES,)),
    "squared": PreludePart(lambda dtype: arithmetic.product("squared", dtype, "x * x"), (_DTYPES,)),
    "cubed": PreludePart(lambda dtype: arithmetic.product("cubed", dtype, "x * x * x"), (_DTYPES,)),
    "sign": PreludePart(arithmetic.sign, (_DTYPES,)),
    "store": PreludePart(moves.store, (_STORED, _HELD)),
    "sum": PreludePart(products.sums, (_C_FLOATS,)),
    "take": PreludePart(moves.take, (_STORED, _HELD, _C_WHOLE)),
    "whole": PreludePart(arithmetic.truncation, (_FLOATS, _WHOLE)),
    **{name: PreludePart(text, (_FLOATS,)) for name, text in FUNCTIONS.items()},
    **{
        n: PreludePart(lambda _, text=text: text, (("float32",),)) for n, text in OF_BATCHES.items()
    },
}
"""The parts that exist for several types, by name; a `Need` has the name and the types.

A part comes after those that it builds on."""


def prelude(needs: Collection[Need]) -> str:
    """The parts that are needed, each after those that it builds on."""
    needs = _with_foundations(needs)
    parts = [HEADER, LANES, MEMORY]
    if any("bfloat16" in part for need in needs for part in need):
        parts.append(_BFLOAT16)
    if ("places",) in needs:
        parts.append(_PLACES)
    if ("runs",) in needs:
        parts.append(_RUNS)
    if ("push",) in needs:
        parts.append(_PUSH)
    if any(need[0] in ("pairs", "dots", "bfloat16_dots") for need in needs):
        parts.append(dots.HEADER)
    vectors = {need[-1] for need in needs if need[0] in ("contract", "lane_sum", "sum")}
    vectors |= {"bfloat16"} if ("bfloat16_dots",) in needs else set()
    parts += [products.vector_type(c_type) for c_type in sorted(vectors)]
    parts += mathematics(needs)
    turned = {need[1] for need in needs if need[0] in ("load", "store")}
    turned |= {dots.PAIR for need in needs if need[0] == "pairs" or "bfloat16" in turned}
    parts += [moves.SHUFFLE, *(moves.turn(c_type) for c_type in sorted(turned))] * bool(turned)
    order = [name for name in PARTS if name not in (*FUNCTIONS, *OF_BATCHES)]
    named = sorted((n for n in needs if n[0] in order), key=lambda n: (order.index(n[0]), n))
    parts += [PARTS[need[0]].written(need) for need in named]
    return "\n".join(parts)


def large_functions(source: str) -> list[str]:
    """The large functions that a program calls: of each a source of its own, to be linked."""
    needs = re.findall(r"^#if LINKED /\* (.+) \*/$", source, re.MULTILINE)
    return [prelude({tuple(need.split())}) for need in needs]


def _with_foundations(needs: Collection[Need]) -> set[Need]:
    """Some parts, and those that they build on."""
    found: set[Need] = set()
    pending = list(needs)
    while pending:
        need = pending.pop()
        if need not in found:
            found.add(need)
            part = PARTS.get(need[0])
            pending += part.builds_on(*need[1:]) if part is not None else ()
    return found


def all_parts() -> str:
    """The whole prelude, for every type: no name of a program may be one of its names."""
    needs: set[Need] = {("places",), ("runs",), ("bfloat16",), ("push",)}
    for name, part in PARTS.items():
        needs |= {(name, *types) for types in product(*part.types)}
    return prelude(needs)
