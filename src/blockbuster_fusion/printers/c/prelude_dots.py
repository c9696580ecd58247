"""Products of bfloat16 in the C prelude: dot instructions of vectors, and units of tiles.

Both multiply pairs of numbers along the sum, and add up in float32. One operand lies in *pairs*:
its row k has for each column the numbers 2k and 2k + 1 of the sum, in 32 bits. Some rows of the
other operand at a time are copied into a *panel*, rounded if need be. Both end in zeros, so that
nothing beyond the sum is multiplied.
"""

from blockbuster_fusion.printers.c.intrinsics import INTRINSICS, TILES

UNITS = ("vector", "matrix")
"""The units that multiply bfloat16: AVX512-BF16, and AMX."""
SOURCES = ("bfloat16", "float")
"""The C types of operands: bfloat16 as they are loaded, and numbers that are rounded."""
FEW_COLUMNS = {"vector": 16, "matrix": 4}
"""The most columns of a product that is faster as dot products of rows (few_rows.few_dots)."""
PAIR = "bfloat16_pair"
"""The C type of a pair of bfloat16."""
PANELS = {"vector": (128, 256), "matrix": (64, 512)}
"""The rows and the depth of a panel: it stays in the second cache, and sums stay exact."""

HEADER = f"""\
#if !LINKED
{INTRINSICS}#endif
/* The rows of pairs of a sum over n: whole tiles. */
#define PAIRS(n) (16 * BLOCKS(n, 32))
"""


def head_of_pairs(source: str) -> str:
    """The head of the function that copies a block into pairs."""
    return f"""\
LARGE void pairs_{source}({PAIR} *RESTRICT to, int64_t row, const {source} *RESTRICT from,
    int64_t f_k, int64_t f_j, int64_t K, int64_t J)"""


def pairs(source: str) -> str:
    """Copies a block into pairs: rows of the sum are joined, columns of it transposed."""
    narrowed = "narrowed_bfloat16({})" if source == "float" else "{}"
    vectors = _NARROWED_PAIRS if source == "float" else ""
    return f"""\
/* to[j] = the pair of low[j] and high[j] */
INLINE void joined_{source}({PAIR} *to, const {source} *low, const {source} *high, int64_t J) {{
    int64_t begin = 0;
{vectors}\
#pragma omp simd
    for (int64_t j = begin; j < J; j++)
        to[j] = {narrowed.format("low[j]")} | (uint32_t){narrowed.format("high[j]")} << 16;
}}

/* to[k][j] = the pair of from[2k][j] and from[2k + 1][j]; zeros follow the last. */
{head_of_pairs(source)} {{
    enum {{ TURN = 8, DEEP = 256, ROW = DEEP + 32 }};
    bfloat16 some[TURN * ROW];
    if (f_j == 1) {{
        int64_t k = 0;
        for (; k < K / 2; k++)
            joined_{source}(to + k * row, from + 2 * k * f_k, from + (2 * k + 1) * f_k, J);
        for (int64_t j = 0; K % 2 && j < J; j++)
            to[k * row + j] = {narrowed.format("from[(K - 1) * f_k + j]")};
        for (k += K % 2; k < PAIRS(K); k++) memset(to + k * row, 0, J * sizeof(*to));
        return;
    }}
    for (int64_t j = 0; j < J; j += TURN)
        for (int64_t k = 0; k < K; k += DEEP) {{
            const int64_t wide = MIN(TURN, J - j), deep = MIN(DEEP, K - k);
            load_{source}_bfloat16(some, ROW, from + j * f_j + k * f_k, f_j, f_k, wide, deep);
            for (int64_t w = 0; w < wide; w++) memset(some + w * ROW + deep, 0, 64);
            for (int64_t d = 0; d < PAIRS(deep); d += TURN)
                turn_{PAIR}(to + (k / 2 + d) * row + j, row, ({PAIR} *)some + d, ROW / 2);
        }}
}}
"""


_NARROWED_PAIRS = """\
#if defined(__AVX512BF16__)
    const __m512i turns = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
        19, 3, 18, 2, 17, 1, 16, 0);
    for (; begin + 16 <= J; begin += 16) {
        const __m512 x = _mm512_loadu_ps(low + begin), y = _mm512_loadu_ps(high + begin);
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(y, x);
        _mm512_storeu_si512(to + begin, _mm512_permutexvar_epi16(turns, both));
    }
#endif
"""


def contraction(source: str, unit: str) -> str:
    """The loops over panels of a contraction of bfloat16 or rounded numbers with pairs."""
    high, deep = PANELS[unit]
    begin, end = ("begin_matrix();", "end_matrix();") if unit == "matrix" else ("", "")
    in_place = ""
    if (source, unit) == ("bfloat16", "vector"):
        in_place = """\
        if (a_k == 1 && deep % 2 == 0) {
            panel_vector(first, I, J, deep, a + k, a_i, from, b_k, c, c_i);
            continue;
        }
"""
    return f"""\
/* c[i][j] += sum over k of a[i][k] * b[k][j], with b in pairs; `fresh`: there is nothing in c yet.
   Each panel sums from 0, so that long sums stay exact. */
static __attribute__((noinline)) void contract_pairs_{source}_{unit}(
    int fresh, int64_t I, int64_t J, int64_t K, const {source} *a, int64_t a_i, int64_t a_k,
    const {PAIR} *b, int64_t b_k, float *c, int64_t c_i) {{
    enum {{ HIGH = {high}, DEEP = {deep}, ROW = DEEP + 32 }};
    bfloat16 panel[HIGH * ROW] __attribute__((aligned(64)));
    {begin}
    for (int64_t k = 0; k == 0 || k < K; k += DEEP) {{
        const {PAIR} *from = b + k / 2 * b_k;
        const int64_t deep = MIN(DEEP, K - k);
        const int first = fresh && k == 0;
{in_place}\
        for (int64_t i = 0; i < I; i += HIGH) {{
            const int64_t rows = MIN(HIGH, I - i);
            load_{source}_bfloat16(panel, ROW, a + i * a_i + k * a_k, a_i, a_k, rows, deep);
            for (int64_t r = 0; r < rows; r++) memset(panel + r * ROW + deep, 0, 64);
            panel_{unit}(first, rows, J, deep, panel, ROW, from, b_k, c + i * c_i, c_i);
        }}
    }}
    {end}
}}
"""


_ARGUMENTS = f"""int64_t K, const bfloat16 *a, int64_t a_i,
    const {PAIR} *b, int64_t b_k, float *c, int64_t c_i"""


def head(unit: str) -> str:
    """The heads of the functions that compute the sums of a panel."""
    begin = "LARGE void begin_matrix(void);\nLARGE void end_matrix(void);\n"
    return f"""\
{begin if unit == "matrix" else ""}\
LARGE void panel_{unit}(int fresh, int64_t I, int64_t J, {_ARGUMENTS})"""


_VECTOR = f"""\
/* c[i][j] += sum over k of a[i][k] * b[k][j] for `rows` rows from i on and `wide` vectors, in
   registers; meanwhile a vector of the columns that follow comes from memory. */
INLINE void rows_vector(int64_t i, int rows, int wide, int fresh, {_ARGUMENTS}) {{
    const {PAIR} *next = b + (wide + i / ROWS % wide) * LANES(float);
    __m512 sum[2 * ROWS][WIDE];
    __m512bh x[WIDE];
    a += i * a_i, c += i * c_i;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) sum[r][w] = _mm512_setzero_ps();
    for (int64_t k = 0; k < BLOCKS(K, 2); k++) {{
        __builtin_prefetch(next + k * b_k);
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++)
            x[w] = (__m512bh)_mm512_loadu_si512(b + k * b_k + w * LANES(float));
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {{
            const __m512bh y =
                (__m512bh)_mm512_set1_epi32((int)*(const {PAIR} *)(a + r * a_i + 2 * k));
#pragma GCC unroll 4
            for (int w = 0; w < wide; w++) sum[r][w] = _mm512_dpbf16_ps(sum[r][w], y, x[w]);
        }}
    }}
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) {{
            float *at = c + r * c_i + w * LANES(float);
            if (!fresh) sum[r][w] = _mm512_add_ps(_mm512_loadu_ps(at), sum[r][w]);
            _mm512_storeu_ps(at, sum[r][w]);
        }}
}}

/* The same for I rows. */
INLINE void columns_vector(int64_t I, int wide, int fresh, {_ARGUMENTS}) {{
    const int rows = wide == 1 ? 2 * ROWS : ROWS;
    int64_t i = 0;
    for (; i + rows <= I; i += rows) rows_vector(i, rows, wide, fresh, K, a, a_i, b, b_k, c, c_i);
    for (; i + 4 <= I; i += 4) rows_vector(i, 4, wide, fresh, K, a, a_i, b, b_k, c, c_i);
    for (; i + 2 <= I; i += 2) rows_vector(i, 2, wide, fresh, K, a, a_i, b, b_k, c, c_i);
    if (i < I) rows_vector(i, 1, wide, fresh, K, a, a_i, b, b_k, c, c_i);
}}

/* The same for J columns; rows of b and c are padded to whole vectors. */
LARGE void panel_vector(int fresh, int64_t I, int64_t J, {_ARGUMENTS}) {{
    enum {{ WIDTH = LANES(float) }};
    int64_t j = 0;
    for (; j + (WIDE - 1) * WIDTH < J; j += WIDE * WIDTH)
        columns_vector(I, WIDE, fresh, K, a, a_i, b + j, b_k, c + j, c_i);
    for (; j + WIDTH < J; j += 2 * WIDTH)
        columns_vector(I, 2, fresh, K, a, a_i, b + j, b_k, c + j, c_i);
    for (; j < J; j += WIDTH) columns_vector(I, 1, fresh, K, a, a_i, b + j, b_k, c + j, c_i);
}}
"""

_TILES = f"""\
/* The instructions of tiles, of 16 rows and 64 bytes each. */
#if !defined(TILE_DOT)
#define TILE_BEGIN(config) _tile_loadconfig(config)
#define TILE_END() _tile_release()
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, bytes) _tile_loadd(tile, from, bytes)
#define TILE_STORE(tile, to, bytes) _tile_stored(tile, to, bytes)
#define TILE_DOT(sums, a, b) _tile_dpbf16ps(sums, a, b)
#endif

{TILES}
static __attribute__((constructor)) void ask_for_tiles(void) {{ are_tiles_granted(); }}

LARGE void begin_matrix(void) {{ TILE_BEGIN(tile_config); }}

LARGE void end_matrix(void) {{ TILE_END(); }}

/* Adds `rows` rows of a tile of sums to c; they replace it if it is `fresh`. */
#define TILE_ADD(tile, rows, to) \\
    do {{ \\
        if (fresh && (rows) >= 16) TILE_STORE(tile, to, c_i * sizeof(float)); \\
        else {{ \\
            TILE_STORE(tile, sums, 64); \\
            add_tile(fresh, rows, sums, to, c_i); \\
        }} \\
    }} while (0)

INLINE void add_tile(int fresh, int64_t rows, const float *sums, float *c, int64_t c_i) {{
    for (int64_t r = 0; r < MIN(rows, 16); r++)
#pragma omp simd
        for (int w = 0; w < 16; w++)
            c[r * c_i + w] = (fresh ? 0 : c[r * c_i + w]) + sums[16 * r + w];
}}

/* c[i][j] += sum over k of a[i][k] * b[k][j] for `high` by `wide` tiles, of which I rows count. */
INLINE void tiles_matrix(int high, int wide, int fresh, int64_t I, {_ARGUMENTS}) {{
    float sums[16 * 16] __attribute__((aligned(64)));
    const int64_t a_bytes = a_i * sizeof(*a), b_bytes = b_k * sizeof(*b);
    __asm__ volatile("" ::: "memory"); /* compilers do not know that tiles are read from memory */
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t k = 0; k < K; k += 32, b += 16 * b_k) {{
        TILE_LOAD(6, b, b_bytes);
        if (wide > 1) TILE_LOAD(7, b + 16, b_bytes);
        TILE_LOAD(4, a + k, a_bytes);
        TILE_DOT(0, 4, 6);
        if (wide > 1) TILE_DOT(1, 4, 7);
        if (high > 1) TILE_LOAD(5, a + 16 * a_i + k, a_bytes);
        if (high > 1) TILE_DOT(2, 5, 6);
        if (high > 1 && wide > 1) TILE_DOT(3, 5, 7);
    }}
    TILE_ADD(0, I, c);
    if (wide > 1) TILE_ADD(1, I, c + 16);
    if (high > 1) TILE_ADD(2, I - 16, c + 16 * c_i);
    if (high > 1 && wide > 1) TILE_ADD(3, I - 16, c + 16 * c_i + 16);
}}

/* The same for I rows. */
INLINE void columns_matrix(int64_t I, int wide, int fresh, {_ARGUMENTS}) {{
    int64_t i = 0;
    for (; i + 16 < I; i += 32)
        tiles_matrix(2, wide, fresh, I - i, K, a + i * a_i, a_i, b, b_k, c + i * c_i, c_i);
    if (i < I) tiles_matrix(1, wide, fresh, I - i, K, a + i * a_i, a_i, b, b_k, c + i * c_i, c_i);
}}

/* The same for J columns; rows of b and c are padded to whole vectors. */
LARGE void panel_matrix(int fresh, int64_t I, int64_t J, {_ARGUMENTS}) {{
    int64_t j = 0;
    for (; j + 16 < J; j += 32) columns_matrix(I, 2, fresh, K, a, a_i, b + j, b_k, c + j, c_i);
    if (j < J) columns_matrix(I, 1, fresh, K, a, a_i, b + j, b_k, c + j, c_i);
}}
"""


def dots(unit: str) -> str:
    """The sums of a panel on a unit."""
    return _VECTOR if unit == "vector" else _TILES
