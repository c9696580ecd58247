"""Functions of batches in C: of 16 neighbours in a vector of AVX-512, in float32.

A function of one element has no branches, so that compilers make vectors of it. That of a batch can
do more: it has tables of 16 numbers in registers, quick reciprocals, and powers of two of any size.
It may also test whether all elements are usual.
"""

from dataclasses import replace

from blockbuster_fusion.printers.c.intrinsics import INTRINSICS
from blockbuster_fusion.printers.c.mathematics.exponentials import LIMIT, LN2, LN2_REST
from blockbuster_fusion.printers.c.mathematics.formats import FLOAT32
from blockbuster_fusion.printers.c.mathematics.tables import TABLES
from blockbuster_fusion.printers.c.mathematics.trigonometry import REACH

BATCH = 16
"""The elements of a batch."""
WITH_BATCHES = "defined(__AVX512F__)"
"""The condition in C for functions of batches."""
ERF_TOP, ERF_STEPS = 3.95, 3.92
"""From here on the error function is 1; it has so many intervals in 1."""
TANH_TOP, TANH_LOW = 9.2, 0.0625
"""From here on tanh is 1; its first interval is twice as long as this is from its end."""

VECTOR = replace(FLOAT32, c_type="__m512")
"""The format of the elements of a vector."""
_SHARED = f"""\
{INTRINSICS}
/* Numbers of a table of 16, by the lowest bits of words. */
INLINE __m512 found_float32(const float *table, __m512 words) {{
    return _mm512_permutexvar_ps(_mm512_castps_si512(words), _mm512_loadu_ps(table));
}}

/* The sizes of elements, or a limit where that is less; NaN stays. */
INLINE __m512 size_up_to_float32(__m512 x, float limit) {{
    return _mm512_min_ps(_mm512_set1_ps(limit), _mm512_abs_ps(x));
}}

INLINE __m512 with_sign_float32(__m512 size, __m512 x) {{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    const __m512i a = _mm512_castps_si512(x), b = _mm512_castps_si512(size);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(a, b, sign, 0xe4));
}}

/* True if the sizes of all elements of a batch are at most a limit. */
INLINE int are_up_to_float32(const float *x, float limit) {{
    const __m512 sizes = _mm512_abs_ps(_mm512_loadu_ps(x));
    return !_mm512_cmp_ps_mask(sizes, _mm512_set1_ps(limit), _CMP_NLE_UQ);
}}
"""


def vectors() -> tuple[str, ...]:
    """The texts of what the functions of batches call."""
    return _SHARED, _exp(), _sigmoid(), _erf(), _tanh()


def _exp() -> str:
    f = FLOAT32
    high, low = f.split(LN2, LN2_REST)
    magic = f(1.5 * 2.0 ** (f.fraction - 4))
    return f"""\
{_table("exp2")}
/* e^x = 2^n 2^(i/16) e^r with |r| <= ln(2)/32, where |x| <= {LIMIT["float32"]:g}; an exact one
   has the rounding errors of 2^(i/16) too. */
INLINE __m512 exp_limited_vector(__m512 x, int is_exact) {{
    const __m512 shifted = x * {f(1 / LN2)} + {magic}, n = shifted - {magic};
    const __m512 r = (x - n * {high}) - n * {low};
    {VECTOR.polynomial("exp_short", "r", "")}
    const __m512 part = found_float32(exp2_table[0], shifted);
    __m512 more = r;
    if (is_exact) more += found_float32(exp2_table[1], shifted);
    return _mm512_scalef_ps(part * (p * (r * r) + more) + part, n);
}}

INLINE __m512 exp_vector(__m512 x) {{
    const __m512 limit = _mm512_set1_ps({f(LIMIT["float32"])});
    return exp_limited_vector(_mm512_max_ps(-limit, _mm512_min_ps(limit, x)), 0);
}}
"""


def _sigmoid() -> str:
    return f"""\
/* A quotient a / b by a reciprocal of 14 bits; a correction doubles these. */
INLINE __m512 sigmoid_vector(__m512 x) {{
    const __m512 t = exp_limited_vector(-size_up_to_float32(x, {FLOAT32(LIMIT["float32"])}), 1);
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 a = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), negative, t), b = 1.0f + t;
    const __m512 reciprocal = _mm512_rcp14_ps(b), near = a * reciprocal;
    return near + (a - near * b) * reciprocal;
}}
"""


def _erf() -> str:
    f = FLOAT32
    return f"""\
{_table("erf")}
INLINE __m512 erf_vector(__m512 x) {{
    const __m512 size = size_up_to_float32(x, {f(ERF_TOP)});
    const __m512 place = size * {f(ERF_STEPS)} + {f.magic()};
    const __mmask16 is_small = _mm512_cmp_ps_mask(place, _mm512_set1_ps({f.magic()}), _CMP_EQ_OQ);
    const __m512 value = _mm512_mask_mov_ps({_found("erf", 1)}, is_small, size);
    {_piece("erf", "value")}
    return with_sign_float32(p, x);
}}
"""


def _tanh() -> str:
    f = FLOAT32
    return f"""\
{_table("tanh")}
/* The place has the lowest bits of the exponent, and the highest of the fraction. */
INLINE __m512 tanh_vector(__m512 x) {{
    const __m512 size = size_up_to_float32(x, {f(TANH_TOP)});
    const __m512 least = _mm512_max_ps(_mm512_set1_ps({f(TANH_LOW)}), size);
    const __m512 place =
        _mm512_castsi512_ps(_mm512_srli_epi32(_mm512_castps_si512(least), {f.fraction - 1}));
    {_piece("tanh", _found("tanh", 1))}
    return with_sign_float32(p, x);
}}
"""


def _table(name: str) -> str:
    columns = [*zip(*TABLES[name], strict=True)]
    rows = ",\n".join(f"    {{{', '.join(map(FLOAT32, column))}}}" for column in columns)
    return f"static const float {name}_table[{len(columns)}][16] = {{\n{rows}}};\n"


def _found(name: str, term: int) -> str:
    return f"found_float32({name}_table[{term}], place)"


def _piece(name: str, value: str) -> str:
    """Statements: p is the polynomial of the interval at a place, for the size."""
    *others, last = (_found(name, term) for term in range(2, len(TABLES[name][0])))
    steps = [f"p = p * d + {text};" for text in (*reversed(others), value)]
    lines = [f"const __m512 d = size - {_found(name, 0)};", f"__m512 p = {last};", *steps]
    return "\n    ".join(lines)


def _batch(name: str) -> str:
    return f"""\
INLINE void {name}_batch_float32(float *x) {{
    _mm512_storeu_ps(x, {name}_vector(_mm512_loadu_ps(x)));
}}
"""


def _sine(name: str) -> str:
    """A sine of a batch: the exact reduction is left out where no element needs it.

    An element has the same result whatever its neighbours are.
    """
    reach = FLOAT32(REACH)
    return f"""\
static __attribute__((noinline, unused)) void {name}_any_batch_float32(float *x) {{
#pragma omp simd
    for (int w = 0; w < {BATCH}; w++) {{
        const float near = {name}_near_float32(x[w]), any = {name}_float32(x[w]);
        x[w] = fabsf(x[w]) <= {reach} ? near : any;
    }}
}}

INLINE void {name}_batch_float32(float *x) {{
    if (!are_up_to_float32(x, {reach})) {{
        {name}_any_batch_float32(x);
        return;
    }}
#pragma omp simd
    for (int w = 0; w < {BATCH}; w++) x[w] = {name}_near_float32(x[w]);
}}
"""


BATCHES = {
    **{name: _batch(name) for name in ("exp", "sigmoid", "erf", "tanh")},
    **{name: _sine(name) for name in ("sin", "cos")},
}
"""The texts of the functions that have a form for batches."""
