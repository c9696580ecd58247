"""Products and sums of the C prelude: the micro-kernel of contractions, and sums in vectors."""


def vector_type(c_type: str) -> str:
    least = 2 if c_type == "bfloat16" else 4
    return f"""\
typedef {c_type} {c_type}_vector __attribute__((vector_size(VECTOR), aligned({least}), may_alias));
"""


def _arguments(c_type: str) -> str:
    return f"""int64_t K, const {c_type} *a, int64_t a_i, int64_t a_k,
    const {c_type} *b, int64_t b_k, {c_type} *c, int64_t c_i"""


def head(c_type: str) -> str:
    """The head of the function that computes a contraction."""
    return f"""\
LARGE void contract_{c_type}(
    int fresh, int64_t I, int64_t J, {_arguments(c_type)})"""


def contraction(c_type: str) -> str:
    """The register-tiled micro-kernel, and the loops that call it."""
    vector, arguments = f"{c_type}_vector", _arguments(c_type)
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

/* c[i][j] += sum over k of a[i][k] * b[k][j]; rows of b and c are padded to whole vectors. */
{head(c_type)} {{
    enum {{ WIDTH = LANES({c_type}), DEEP = 96 }};
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


def sums(c_type: str) -> str:
    """Pairwise sums of a row, and of the products of two rows."""
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
