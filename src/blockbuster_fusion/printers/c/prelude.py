"""The prelude of generated C: types, macros and functions, of which a program has those it uses."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import product

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.passes.cascade_sums import FEW
from blockbuster_fusion.printers.c.expressions import Need
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

/* The next program of the grid that no thread has taken. */
INLINE int64_t claim(int64_t *next) {
    int64_t program;
#pragma omp atomic capture
    program = (*next)++;
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

_BFLOAT16 = """\
typedef uint16_t bfloat16;

INLINE float widened_bfloat16(bfloat16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

INLINE bfloat16 narrowed_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bfloat16)(x != x ? (bits >> 16 | 0x40) : rounded);
}
"""

_EXP = """\
/* e^x = 2^n e^r with |r| <= ln(2)/2; the error is about 1e-7. */
INLINE float exp_float32(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = x * 1.44269504f + magic;
    float n = shifted - magic;
    float r = x - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    int32_t exponent = bits - 0x4b400000, half = exponent >> 1;
    int32_t first = (half + 127) * (1 << 23), second = (exponent - half + 127) * (1 << 23);
    float a, b;
    memcpy(&a, &first, 4);
    memcpy(&b, &second, 4);
    return x != x ? x : p * a * b;
}
"""

_EXP2 = """\
/* 2^x = 2^n e^(r ln 2) with |r| <= 1/2, which is exact; the error is about 1e-7. */
INLINE float exp2_float32(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    x = x < -150.0f ? -150.0f : x;
    x = x > 128.0f ? 128.0f : x;
    float shifted = x + magic;
    float r = (x - (shifted - magic)) * 0.693147182f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    int32_t exponent = bits - 0x4b400000, half = exponent >> 1;
    int32_t first = (half + 127) * (1 << 23), second = (exponent - half + 127) * (1 << 23);
    float a, b;
    memcpy(&a, &first, 4);
    memcpy(&b, &second, 4);
    return x != x ? x : p * a * b;
}
"""


def _type(dtype: str) -> str:
    return C_TYPES[DType(dtype)]


def _pick(name: str, dtype: str, sign: str) -> str:
    c_type = _type(dtype)
    nan = " || a != a" if "float" in dtype else ""
    return f"""\
INLINE {c_type} {name}_{dtype}({c_type} a, {c_type} b) {{
    return a {sign}= b{nan} ? a : b;
}}
"""


def _sign(dtype: str) -> str:
    c_type = _type(dtype)
    return f"""\
INLINE {c_type} sign_{dtype}({c_type} x) {{
    return x > 0 ? 1 : x < 0 ? -1 : x;
}}
"""


def _whole(source: str, dtype: str) -> str:
    """A conversion of floats to integers; in C the result out of range is undefined."""
    bits = 63 if dtype == "int64" else 31
    bound = f"0x1p{bits}{'' if source == 'float64' else 'f'}"
    return f"""\
INLINE {dtype}_t whole_{source}_{dtype}({_type(source)} x) {{
    return x >= -{bound} && x < {bound} ? ({dtype}_t)x : {dtype.upper()}_MIN;
}}
"""


def _floordiv(dtype: str) -> str:
    c_type = _type(dtype)
    if "float" in dtype:
        suffix = "" if c_type == "double" else "f"
        return f"""\
INLINE {c_type} floordiv_{dtype}({c_type} a, {c_type} b) {{
    {c_type} r = fmod{suffix}(a, b), q = (a - r) / b;
    if (b == 0) return a / b;
    if (r != 0 && (r < 0) != (b < 0)) q -= 1;
    if (q == 0) return copysign{suffix}(0, a / b);
    {c_type} whole = floor{suffix}(q);
    return q - whole > ({c_type})0.5 ? whole + 1 : whole;
}}
"""
    return f"""\
INLINE {c_type} floordiv_{dtype}({c_type} a, {c_type} b) {{
    if (b == 0) return 0;
    if (b == -1) return ({c_type})(0 - (uint64_t)a);
    return a % b != 0 && (a % b < 0) != (b < 0) ? a / b - 1 : a / b;
}}
"""


def _mod(dtype: str) -> str:
    c_type = _type(dtype)
    if "float" in dtype:
        suffix = "" if c_type == "double" else "f"
        return f"""\
INLINE {c_type} mod_{dtype}({c_type} a, {c_type} b) {{
    {c_type} r = fmod{suffix}(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}}
"""
    return f"""\
INLINE {c_type} mod_{dtype}({c_type} a, {c_type} b) {{
    {c_type} r = b == 0 || b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}}
"""


def _vector(c_type: str) -> str:
    return f"""\
typedef {c_type} {c_type}_vector __attribute__((vector_size(VECTOR), aligned(4), may_alias));
"""


def _contract(c_type: str) -> str:
    """The register-tiled micro-kernel, and the loops that call it."""
    vector = f"{c_type}_vector"
    arguments = f"""int64_t K, const {c_type} *a, int64_t a_i, int64_t a_k,
    const {c_type} *b, int64_t b_k, {c_type} *c, int64_t c_i"""
    return f"""\
/* c[i][j] += sum over k of a[i][k] * b[k][j] for `rows` rows and `wide` vectors, in registers;
   `fresh`: there is nothing in c yet. Each call sums from 0, so that long sums stay exact. */
INLINE void contract_rows_{c_type}(int rows, int wide, int fresh, {arguments}) {{
    enum {{ WIDTH = LANES({c_type}) }};
    {vector} sum[2 * ROWS][WIDE], x[WIDE];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) sum[r][w] = ({vector}){{0}};
    for (int64_t k = 0; k < K; k++) {{
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) x[w] = *(const {vector} *)(b + k * b_k + w * WIDTH);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int w = 0; w < wide; w++) sum[r][w] += a[r * a_i + k * a_k] * x[w];
    }}
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) {{
            {vector} *at = ({vector} *)(c + r * c_i + w * WIDTH);
            if (!fresh) sum[r][w] += *at;
            *at = sum[r][w];
        }}
}}

/* As above for I rows: the block of b, K by `wide` vectors, stays in the cache meanwhile. */
INLINE void contract_columns_{c_type}(int64_t I, int wide, int fresh, {arguments}) {{
    const int rows = wide == 1 ? 2 * ROWS : ROWS;
    int64_t i = 0;
    for (; i + rows <= I; i += rows)
        contract_rows_{c_type}(rows, wide, fresh, K, a + i * a_i, a_i, a_k, b, b_k, c + i * c_i,
                               c_i);
    for (; i + 4 <= I; i += 4)
        contract_rows_{c_type}(4, wide, fresh, K, a + i * a_i, a_i, a_k, b, b_k, c + i * c_i, c_i);
    for (; i < I; i++)
        contract_rows_{c_type}(1, wide, fresh, K, a + i * a_i, a_i, a_k, b, b_k, c + i * c_i, c_i);
}}

/* The same where c has few columns and the rows of a are contiguous: vectors run along k. */
INLINE void contract_thin_rows_{c_type}(int rows, int fresh, int64_t K, const {c_type} *a,
                                        int64_t a_i, const {c_type} *column, {c_type} *c,
                                        int64_t c_i) {{
    enum {{ WIDTH = LANES({c_type}), SUMS = 4 }};
    {vector} sum[SUMS] = {{{{0}}}};
    int64_t k = 0;
    for (; k + WIDTH <= K; k += WIDTH)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sum[r] += *(const {vector} *)(a + r * a_i + k) * *(const {vector} *)(column + k);
    for (int r = 0; r < rows; r++) {{
        {c_type} total = 0;
        for (int64_t rest = k; rest < K; rest++) total += a[r * a_i + rest] * column[rest];
        for (int w = 0; w < WIDTH; w++) total += sum[r][w];
        c[r * c_i] = (fresh ? 0 : c[r * c_i]) + total;
    }}
}}

static __attribute__((noinline)) void contract_thin_{c_type}(int fresh, int64_t I, int64_t J,
    {arguments}) {{
    enum {{ DEEP = 1024 }};
    {c_type} column[DEEP];
    for (int64_t j = 0; j < J; j++)
        for (int64_t k = 0; k == 0 || k < K; k += DEEP) {{
            const int64_t deep = MIN(DEEP, K - k);
            const int first = fresh && k == 0;
            const {c_type} *from = a + k * a_k;
            int64_t i = 0;
            for (int64_t d = 0; d < deep; d++) column[d] = b[(k + d) * b_k + j];
            for (; i + 4 <= I; i += 4)
                contract_thin_rows_{c_type}(4, first, deep, from + i * a_i, a_i, column,
                                            c + i * c_i + j, c_i);
            for (; i < I; i++)
                contract_thin_rows_{c_type}(1, first, deep, from + i * a_i, a_i, column,
                                            c + i * c_i + j, c_i);
        }}
}}

/* c[i][j] += sum over k of a[i][k] * b[k][j]; rows of b and c are padded to whole vectors. */
static __attribute__((noinline)) void contract_{c_type}(
    int fresh, int64_t I, int64_t J, {arguments}) {{
    enum {{ WIDTH = LANES({c_type}), DEEP = 128 }};
    if (J <= 3 && a_k == 1) {{
        contract_thin_{c_type}(fresh, I, J, K, a, a_i, a_k, b, b_k, c, c_i);
        return;
    }}
    for (int64_t k = 0; k == 0 || k < K; k += DEEP) {{
        const {c_type} *a_from = a + k * a_k, *b_from = b + k * b_k;
        const int64_t deep = MIN(DEEP, K - k);
        const int first = fresh && k == 0;
        int64_t j = 0;
        for (; j + (WIDE - 1) * WIDTH < J; j += WIDE * WIDTH)
            contract_columns_{c_type}(I, WIDE, first, deep, a_from, a_i, a_k, b_from + j, b_k,
                                      c + j, c_i);
        for (; j + WIDTH < J; j += 2 * WIDTH)
            contract_columns_{c_type}(I, 2, first, deep, a_from, a_i, a_k, b_from + j, b_k, c + j,
                                      c_i);
        for (; j < J; j += WIDTH)
            contract_columns_{c_type}(I, 1, first, deep, a_from, a_i, a_k, b_from + j, b_k, c + j,
                                      c_i);
    }}
}}
"""


def _sum(c_type: str) -> str:
    """Sums of a row and of the products of two, pairwise."""
    vector = f"{c_type}_vector"
    return f"""\
/* The lanes of four vectors, added in pairs. */
INLINE {c_type} added_{c_type}({vector} a, {vector} b, {vector} c, {vector} d) {{
    {vector} sum = (a + b) + (c + d);
    for (int half = LANES({c_type}) / 2; half > 0; half /= 2)
        for (int w = 0; w < half; w++) sum[w] += sum[w + half];
    return sum[0];
}}

/* The sum of n numbers: of runs, each in four vectors. */
static __attribute__((noinline, unused)) {c_type} sum_{c_type}(const {c_type} *x, int64_t n) {{
    enum {{ WIDTH = LANES({c_type}), RUN = 64 * WIDTH }};
    {c_type} total = 0, rest = 0;
    int64_t at = 0;
    while (at + 4 * WIDTH <= n) {{
        const int64_t end = MIN(n, at + RUN);
        {vector} a = {{0}}, b = a, c = a, d = a;
        for (; at + 4 * WIDTH <= end; at += 4 * WIDTH) {{
            const {vector} *from = (const {vector} *)(x + at);
            a += from[0];
            b += from[1];
            c += from[2];
            d += from[3];
        }}
        total += added_{c_type}(a, b, c, d);
    }}
    for (; at < n; at++) rest += x[at];
    return total + rest;
}}

/* The sum of n products, in the same way. */
static __attribute__((noinline, unused)) {c_type} dot_{c_type}(
    int64_t n, const {c_type} *x, int64_t x_step, const {c_type} *y, int64_t y_step) {{
    enum {{ WIDTH = LANES({c_type}), RUN = 64 * WIDTH }};
    {c_type} total = 0, rest = 0;
    int64_t at = 0;
    while (x_step == 1 && y_step == 1 && at + 4 * WIDTH <= n) {{
        const int64_t end = MIN(n, at + RUN);
        {vector} a = {{0}}, b = a, c = a, d = a;
        for (; at + 4 * WIDTH <= end; at += 4 * WIDTH) {{
            const {vector} *from = (const {vector} *)(x + at), *by = (const {vector} *)(y + at);
            a += from[0] * by[0];
            b += from[1] * by[1];
            c += from[2] * by[2];
            d += from[3] * by[3];
        }}
        total += added_{c_type}(a, b, c, d);
    }}
    for (int64_t end = MIN(n, at + 64); at < n; end = MIN(n, at + 64), total += rest, rest = 0)
        for (; at < end; at++) rest += x[at * x_step] * y[at * y_step];
    return total + rest;
}}
"""


def _widen(stored: str, text: str) -> str:
    return f"widened_bfloat16({text})" if stored == "bfloat16" else text


def _narrow(stored: str, text: str) -> str:
    return f"narrowed_bfloat16({text})" if stored == "bfloat16" else f"({stored})({text})"


def _load(stored: str, held: str) -> str:
    """Loads a block into a tile; it is transposed if its columns are contiguous in memory."""
    return f"""\
/* tile[i][j] = block[i*b_i + j*b_j] */
static void load_{stored}_{held}({held} *RESTRICT tile, int64_t t_i, const {stored} *RESTRICT block,
                         int64_t b_i, int64_t b_j, int64_t I, int64_t J) {{
    enum {{ TURN = 16 }};
    if (b_j == 1) {{
        for (int64_t i = 0; i < I; i++)
#pragma omp simd
            for (int64_t j = 0; j < J; j++)
                tile[i * t_i + j] = {_widen(stored, "block[i * b_i + j]")};
        return;
    }}
    for (int64_t j = 0; j < J; j += TURN)
        for (int64_t i = 0; i < I; i += TURN) {{
            int64_t wide = MIN(TURN, J - j), high = MIN(TURN, I - i);
            if (b_i == 1 && wide == TURN && high == TURN) {{
                {held} turned[TURN][TURN];
                for (int w = 0; w < TURN; w++)
#pragma omp simd
                    for (int h = 0; h < TURN; h++)
                        turned[w][h] = {_widen(stored, "block[i + h + (j + w) * b_j]")};
                for (int h = 0; h < TURN; h++)
#pragma omp simd
                    for (int w = 0; w < TURN; w++) tile[(i + h) * t_i + j + w] = turned[w][h];
                continue;
            }}
            for (int64_t h = 0; h < high; h++)
                for (int64_t w = 0; w < wide; w++)
                    tile[(i + h) * t_i + j + w] =
                        {_widen(stored, "block[(i + h) * b_i + (j + w) * b_j]")};
        }}
}}
"""


def _take(stored: str, held: str, index: str) -> str:
    """Loads elements of a table into a tile, a band of rows at once, each along its columns.

    A band with an index out of range is not loaded.
    """
    return f"""\
/* tile[i][j] = table[places[j]*step + i*t_i + j*t_j] */
static void take_{stored}_{held}_{index}(
    {held} *RESTRICT tile, int64_t row, const {stored} *RESTRICT table, int64_t length,
    const {index} *RESTRICT places, int64_t step, int64_t t_i, int64_t t_j, int64_t I, int64_t J,
    int *outside) {{
    enum {{ BAND = 16 }};
    for (int64_t j = 0; j < J; j += BAND) {{
        const int64_t end = MIN(j + BAND, J);
        int inside = 1;
        for (int64_t w = j; w < end; w++) inside &= on_axis(places[w], length, outside);
        if (!inside) continue;
        for (int64_t i = 0; i < I; i++)
            for (int64_t w = j; w < end; w++)
                tile[i * row + w] = {_widen(stored, "table[places[w] * step + i * t_i + w * t_j]")};
    }}
}}
"""


def _store(stored: str, held: str) -> str:
    return f"""\
/* block[i*b_i + j*b_j] = tile[i][j] */
static void store_{stored}_{held}({stored} *RESTRICT block, int64_t b_i, int64_t b_j,
                          const {held} *RESTRICT tile, int64_t t_i, int64_t I, int64_t J) {{
    enum {{ TURN = 16 }};
    if (b_j == 1) {{
        for (int64_t i = 0; i < I; i++)
#pragma omp simd
            for (int64_t j = 0; j < J; j++)
                block[i * b_i + j] = {_narrow(stored, "tile[i * t_i + j]")};
        return;
    }}
    for (int64_t j = 0; j < J; j += TURN)
        for (int64_t i = 0; i < I; i += TURN)
            for (int64_t w = j; w < MIN(j + TURN, J); w++)
                for (int64_t h = i; h < MIN(i + TURN, I); h++)
                    block[h * b_i + w * b_j] = {_narrow(stored, "tile[h * t_i + w]")};
}}
"""


_DTYPES = ("float32", "float64", "int32", "int64", "bool")
_FLOATS, _WHOLE = ("float32", "float64"), ("int32", "int64")
_C_FLOATS, _C_WHOLE = ("float", "double"), ("int32_t", "int64_t")
_HELD, _STORED = tuple(sorted({*C_TYPES.values()})), tuple(sorted({*C_STORED.values()}))


@dataclass(frozen=True, slots=True)
class PreludePart:
    """A part of the prelude: its text for some types, and all types that it exists for."""

    text: Callable[..., str]
    types: tuple[tuple[str, ...], ...] = ()


PARTS = {
    "contract": PreludePart(_contract, (_C_FLOATS,)),
    "exp": PreludePart(lambda _: _EXP, (("float32",),)),
    "exp2": PreludePart(lambda _: _EXP2, (("float32",),)),
    "floordiv": PreludePart(_floordiv, (_DTYPES,)),
    "load": PreludePart(_load, (_STORED, _HELD)),
    "maximum": PreludePart(lambda dtype: _pick("maximum", dtype, ">"), (_DTYPES,)),
    "minimum": PreludePart(lambda dtype: _pick("minimum", dtype, "<"), (_DTYPES,)),
    "mod": PreludePart(_mod, (_DTYPES,)),
    "sign": PreludePart(_sign, (_DTYPES,)),
    "store": PreludePart(_store, (_STORED, _HELD)),
    "sum": PreludePart(_sum, (_C_FLOATS,)),
    "take": PreludePart(_take, (_STORED, _HELD, _C_WHOLE)),
    "whole": PreludePart(_whole, (_FLOATS, _WHOLE)),
}
"""The parts that exist for several types, by name; a `Need` has the name and the types."""


def prelude(needs: Collection[Need]) -> str:
    """The parts that are needed, each after those that it builds on."""
    parts = [HEADER, LANES, MEMORY]
    if any("bfloat16" in need for need in needs):
        parts.append(_BFLOAT16)
    if ("places",) in needs:
        parts.append(_PLACES)
    if ("runs",) in needs:
        parts.append(_RUNS)
    vectors = {need[1] for need in needs if need[0] in ("contract", "sum")}
    parts += [_vector(c_type) for c_type in sorted(vectors)]
    parts += [PARTS[name].text(*types) for name, *types in sorted(needs) if name in PARTS]
    return "\n".join(parts)


def all_parts() -> str:
    """The whole prelude, for every type: no name of a program may be one of its names."""
    needs: set[Need] = {("places",), ("runs",), ("bfloat16",)}
    for name, part in PARTS.items():
        needs |= {(name, *types) for types in product(*part.types)}
    return prelude(needs)
