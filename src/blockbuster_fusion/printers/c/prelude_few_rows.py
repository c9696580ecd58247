"""Products of few rows with many in the C prelude, in vectors along the axis of the weights."""

from blockbuster_fusion.nest.analysis.few_rows import FEW
from blockbuster_fusion.printers.c.prelude_dots import PAIR

_WIDENED = {
    "bfloat16": """\
    typedef uint16_t narrow __attribute__((vector_size(VECTOR / 2), aligned(2), may_alias));
    typedef uint32_t wide __attribute__((vector_size(VECTOR)));
    return (float_vector)(__builtin_convertvector(*(const narrow *)from, wide) << 16);""",
    # gcc 12 converts these one by one, unless it is told the instruction.
    "_Float16": """\
#if defined(__AVX512F__) && !defined(__clang__)
    typedef int16_t narrow __attribute__((vector_size(32), aligned(2), may_alias));
    typedef int16_t bits __attribute__((vector_size(32)));
    typedef float wide __attribute__((vector_size(64)));
    return __builtin_ia32_vcvtph2ps512_mask((bits)*(const narrow *)from, (wide){0}, -1, 4);
#elif defined(__F16C__) && !defined(__clang__)
    typedef int16_t narrow __attribute__((vector_size(16), aligned(2), may_alias));
    typedef int16_t bits __attribute__((vector_size(16)));
    return __builtin_ia32_vcvtph2ps256((bits)*(const narrow *)from);
#else
    typedef _Float16 narrow __attribute__((vector_size(VECTOR / 2), aligned(2), may_alias));
    return __builtin_convertvector(*(const narrow *)from, float_vector);
#endif""",
}


def vector_loads(stored: str, held: str) -> str:
    """Loads of a vector, whole or in part, from a type that may be narrower."""
    name, vector = f"loaded_{stored}_{held}", f"{held}_vector"
    plain = f"    return *(const {vector} *)from;"
    return f"""\
INLINE {vector} {name}(const {stored} *from) {{
{plain if stored == held else _WIDENED.get(stored, plain)}
}}

/* The first n numbers of a vector, and zeros. */
INLINE void part_{name}(const {stored} *from, int64_t n, {stored} *part) {{
#pragma omp simd
    for (int w = 0; w < LANES({held}); w++) part[w] = w < n ? from[w] : 0;
}}
"""


def lane_sum(held: str) -> str:
    """The sum of the lanes of a vector."""
    return f"""\
INLINE {held} lane_sum_{held}(const {held}_vector *sum) {{
    {held} part[LANES({held})];
    memcpy(part, sum, VECTOR);
    for (int half = LANES({held}) / 2; half > 0; half /= 2)
#pragma omp simd
        for (int w = 0; w < half; w++) part[w] += part[w + half];
    return part[0];
}}
"""


def head(stored: str, held: str) -> str:
    """The head of the function that computes such a product."""
    return f"""\
LARGE void few_rows_{stored}_{held}(
    int fresh, int64_t I, int64_t J, int64_t K, const {held} *a, int64_t a_i, int64_t a_k,
    const {stored} *b, int64_t b_j, int64_t b_k, {held} *c, int64_t c_i, int64_t c_j)"""


def few_rows(stored: str, held: str) -> str:
    """The product of few rows with many: dot products, or sums of rows of the weights."""
    parts = [_dots(stored, held), _row_sums(stored, held), _few_rows(stored, held)]
    return "\n".join(parts)


def bfloat16_head() -> str:
    """The head of the function for dot products of rows of bfloat16."""
    return _dots_head("bfloat16", "bfloat16")


def bfloat16_dots() -> str:
    """Dot products of rows of bfloat16, by the instruction for their pairs."""
    return "\n".join([vector_loads("bfloat16", "bfloat16"), _dots("bfloat16", "bfloat16")])


def few_dots(source: str) -> str:
    """The product of few rows, of numbers or in pairs, with many rows of bfloat16."""
    copied = """\
#pragma omp simd
            for (int64_t d = 0; d < deep; d++)
                few[i][d] = narrowed_bfloat16(a[i * a_i + (k + d) * a_k]);"""
    if source == PAIR:
        copied = f"""\
            for (int64_t d = 0; d < BLOCKS(deep, 2); d++)
                (({PAIR} *)few[i])[d] = a[i * a_i + (k / 2 + d) * a_k];"""
    return f"""\
/* c[i][j] += sum over k of a[i][k] * b[j][k] for up to {FEW} rows of a, which are copied. b is read
   once, in place. */
static __attribute__((noinline)) void few_dots_{source}(
    int fresh, int64_t I, int64_t J, int64_t K, const {source} *a, int64_t a_i, int64_t a_k,
    const bfloat16 *b, int64_t b_j, float *c, int64_t c_i, int64_t c_j) {{
    enum {{ DEEP = 32 * LANES(bfloat16), ROW = DEEP + LANES(bfloat16), BAND = 24 }};
    bfloat16 few[{FEW}][ROW];
    for (int64_t k = 0; k == 0 || k < K; k += DEEP) {{
        const int64_t deep = MIN(DEEP, K - k);
        for (int64_t i = 0; i < MIN(I, {FEW}); i++)
{copied}
        for (int64_t j = 0; j < J; j += BAND)
            dots_bfloat16_bfloat16(I, fresh && k == 0, MIN(BAND, J - j), deep, few[0], ROW,
                                   b + j * b_j + k, b_j, c + j * c_j, c_i, c_j);
    }}
}}
"""


def _dots_arguments(stored: str, few: str) -> str:
    held = "float" if few == "bfloat16" else few
    return f"""int64_t K, const {few} *a, int64_t a_i,
    const {stored} *b, int64_t b_j, {held} *c, int64_t c_i, int64_t c_j"""


def _dots_head(stored: str, few: str) -> str:
    linkage = "LARGE" if few == "bfloat16" else "INLINE"
    arguments = _dots_arguments(stored, few)
    return f"{linkage} void dots_{stored}_{few}(int64_t I, int fresh, int64_t J, {arguments})"


def _dots(stored: str, few: str) -> str:
    held, arguments = "float" if few == "bfloat16" else few, _dots_arguments(stored, few)
    vector, kind = f"{held}_vector", f"{stored}_{few}"
    added = "sum[r][w] += x[r] * y;"
    if few == "bfloat16":
        added = """\
                    sum[r][w] = (float_vector)_mm512_dpbf16_ps((__m512)sum[r][w], (__m512bh)x[r],
                                                               (__m512bh)y);""".lstrip()
    return f"""\
/* c[i][j] += sum over k of a[i][k] * b[j][k] for `rows` rows of a and `wide` of b, in registers.
   Only `some` rows of b may exist: then the last is read for those that do not. */
INLINE void dots_tile_{kind}(int rows, int wide, int64_t some, int fresh, {arguments}) {{
    enum {{ WIDTH = LANES({few}) }};
    {vector} sum[4][8], sums[4][8];
    {few}_vector x[4], y;
    {few} few[4][WIDTH];
    {stored} many[8][WIDTH];
    const {stored} *from[8];
    int64_t end = K / WIDTH * WIDTH, rest = K - end;
#pragma GCC unroll 8
    for (int w = 0; w < wide; w++) {{
        from[w] = b + MIN(w, some - 1) * b_j;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[r][w] = ({vector}){{0}};
    }}
    while (1) {{
        for (int64_t k = 0; k < end; k += WIDTH) {{
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) x[r] = loaded_{few}_{few}(a + r * a_i + k);
#pragma GCC unroll 8
            for (int w = 0; w < wide; w++) {{
                y = loaded_{kind}(from[w] + k);
                IN_REGISTER(y);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {added}
            }}
        }}
        if (rest == 0) break;
        for (int r = 0; r < rows; r++) part_loaded_{few}_{few}(a + r * a_i + end, rest, few[r]);
#pragma GCC unroll 8
        for (int w = 0; w < wide; w++) {{
            part_loaded_{kind}(from[w] + end, rest, many[w]);
            from[w] = many[w];
        }}
        a = few[0], a_i = end = WIDTH, rest = 0;
    }}
#pragma GCC unroll 8
    for (int w = 0; w < wide; w++)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sums[r][w] = sum[r][w];
    for (int r = 0; r < rows; r++)
        for (int w = 0; w < some; w++) {{
            {held} *at = c + r * c_i + w * c_j;
            *at = (fresh ? 0 : *at) + lane_sum_{held}(&sums[r][w]);
        }}
}}

INLINE void dots_rows_{kind}(int rows, int fresh, int64_t J, {arguments}) {{
    const int wide = (int)MIN(8, ROWS * WIDE / rows);
    for (int64_t j = 0; j < J; j += wide)
        dots_tile_{kind}(rows, wide, MIN(wide, J - j), fresh, K, a, a_i, b + j * b_j, b_j,
                         c + j * c_j, c_i, c_j);
}}

/* The same for I rows, up to 4 at a time. */
{_dots_head(stored, few)} {{
    const int64_t groups = BLOCKS(I, 4);
    for (int64_t g = 0; g < groups; g++) {{
        const int64_t i = I * g / groups, rows = I * (g + 1) / groups - i;
        const {few} *x = a + i * a_i;
        {held} *to = c + i * c_i;
        switch (rows) {{
        case 1: dots_rows_{kind}(1, fresh, J, K, x, a_i, b, b_j, to, c_i, c_j); break;
        case 2: dots_rows_{kind}(2, fresh, J, K, x, a_i, b, b_j, to, c_i, c_j); break;
        case 3: dots_rows_{kind}(3, fresh, J, K, x, a_i, b, b_j, to, c_i, c_j); break;
        case 4: dots_rows_{kind}(4, fresh, J, K, x, a_i, b, b_j, to, c_i, c_j); break;
        }}
    }}
}}
"""


def _row_sums(stored: str, held: str) -> str:
    arguments = f"""int64_t I, const {held} *a, int64_t a_i, int64_t a_k, const {stored} *b,
    int64_t b_k, {held} *c, int64_t c_i"""
    vector, kind = f"{held}_vector", f"{stored}_{held}"
    return f"""\
/* c[i][j] += sum over k of a[i][k] * b[k][j] for `deep` rows of b and `wide` vectors of them, or
   the first n lanes of one; `fresh`: there is nothing in c yet. */
INLINE void row_sums_tile_{kind}(int deep, int wide, int64_t n, int fresh, {arguments}) {{
    enum {{ WIDTH = LANES({held}) }};
    {vector} y[2 * WIDE][2];
#pragma GCC unroll 8
    for (int q = 0; q < deep; q++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++) {{
            const {stored} *from = b + q * b_k + w * WIDTH;
            {stored} part[WIDTH];
            if (I > 2) __builtin_prefetch(from + deep * b_k);
            if (n < WIDTH) part_loaded_{kind}(from, n, part);
            y[q][w] = loaded_{kind}(n < WIDTH ? part : from);
        }}
    for (int64_t i = 0; i < I; i++) {{
        {vector} *to = ({vector} *)(c + i * c_i), sum[2];
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++) sum[w] = ({vector}){{0}};
#pragma GCC unroll 8
        for (int q = 0; q < deep; q++)
#pragma GCC unroll 2
            for (int w = 0; w < wide; w++) sum[w] += a[i * a_i + q * a_k] * y[q][w];
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++) {{
            if (!fresh) sum[w] += to[w];
            to[w] = sum[w];
        }}
    }}
}}

INLINE void row_sums_deep_{kind}(int deep, int fresh, int64_t J, {arguments}) {{
    enum {{ WIDTH = LANES({held}) }};
    int64_t j = 0;
    for (; deep > 1 && j + 2 * WIDTH <= J; j += 2 * WIDTH)
        row_sums_tile_{kind}(deep, 2, WIDTH, fresh, I, a, a_i, a_k, b + j, b_k, c + j, c_i);
    for (; j < J; j += WIDTH)
        row_sums_tile_{kind}(deep, 1, J - j, fresh, I, a, a_i, a_k, b + j, b_k, c + j, c_i);
}}

/* The same for K rows of b. */
INLINE void row_sums_rows_{kind}(int fresh, int64_t J, int64_t K, {arguments}) {{
    enum {{ DEEP = 2 * WIDE }};
    int64_t k = 0;
    for (; k + DEEP <= K; k += DEEP, fresh = 0)
        row_sums_deep_{kind}(DEEP, fresh, J, I, a + k * a_k, a_i, a_k, b + k * b_k, b_k, c, c_i);
    for (; k < K; k++, fresh = 0)
        row_sums_deep_{kind}(1, fresh, J, I, a + k * a_k, a_i, a_k, b + k * b_k, b_k, c, c_i);
}}

/* The same in panels of sums that stay in the cache. They are added to c after some rows of b, so
   that long sums stay exact. */
static __attribute__((noinline)) void row_sums_{kind}(int fresh, int64_t J, int64_t K,
    {arguments}) {{
    enum {{ DEEP = 256, PANEL = 512 * {FEW} }};
    {held} sums[PANEL + LANES({held})];
    const int64_t wide = PANEL / I / LANES({held}) * LANES({held});
    for (int64_t j = 0; j < J; j += wide)
        for (int64_t k = 0; k == 0 || k < K; k += DEEP) {{
            const int64_t columns = MIN(wide, J - j), deep = MIN(DEEP, K - k);
            if (deep == 0) memset(sums, 0, sizeof(sums));
            row_sums_rows_{kind}(1, columns, deep, I, a + k * a_k, a_i, a_k, b + k * b_k + j, b_k,
                                 sums, wide);
            for (int64_t i = 0; i < I; i++)
#pragma omp simd
                for (int64_t w = 0; w < columns; w++) {{
                    const {held} before = fresh && k == 0 ? 0 : c[i * c_i + j + w];
                    c[i * c_i + j + w] = before + sums[i * wide + w];
                }}
        }}
}}
"""


def _few_rows(stored: str, held: str) -> str:
    kind = f"{stored}_{held}"
    return f"""\
/* c[i][j] += sum over k of a[i][k] * b[j][k], in vectors along k. What is not contiguous along k is
   copied: few rows of a for some bands of b, and b in bands. */
static __attribute__((noinline)) void dot_products_{kind}(
    int fresh, int64_t I, int64_t J, int64_t K, const {held} *a, int64_t a_i, int64_t a_k,
    const {stored} *b, int64_t b_j, int64_t b_k, {held} *c, int64_t c_i, int64_t c_j) {{
    enum {{ DEEP = 64 * LANES({held}), ROW = DEEP + LANES({held}), BAND = 24 }};
    {held} few[{FEW}][ROW];
    {stored} many[BAND][DEEP];
    for (int64_t k = 0; k == 0 || k < K; k += DEEP) {{
        const int64_t deep = MIN(DEEP, K - k), x_i = a_k == 1 ? a_i : (int64_t)ROW;
        const {held} *x = a_k == 1 ? a + k : few[0];
        for (int64_t i = 0; a_k != 1 && i < MIN(I, {FEW}); i++)
            for (int64_t d = 0; d < deep; d++) few[i][d] = a[i * a_i + (k + d) * a_k];
        for (int64_t j = 0; j < J; j += BAND) {{
            const int64_t wide = MIN(BAND, J - j), y_j = b_k == 1 ? b_j : (int64_t)DEEP;
            const {stored} *y = b_k == 1 ? b + j * b_j + k : many[0];
            for (int64_t d = 0; b_k != 1 && d < deep; d++)
                for (int64_t w = 0; w < wide; w++) many[w][d] = b[(j + w) * b_j + (k + d) * b_k];
            dots_{kind}(I, fresh && k == 0, wide, deep, x, x_i, y, y_j, c + j * c_j, c_i, c_j);
        }}
    }}
}}

/* The same for up to {FEW} rows of a and any strides. b is read once, and in place if it is
   contiguous along k, or along the columns of c. */
{head(stored, held)} {{
    enum {{ COLUMNS = 240 }};
    if (b_k != 1 && b_j == 1 && c_j == 1) {{
        row_sums_{kind}(fresh, J, K, I, a, a_i, a_k, b, b_k, c, c_i);
        return;
    }}
    for (int64_t j = 0; j < J; j += COLUMNS)
        dot_products_{kind}(fresh, I, MIN(COLUMNS, J - j), K, a, a_i, a_k, b + j * b_j, b_j, b_k,
                            c + j * c_j, c_i, c_j);
}}
"""
