"""Exponentials in C, and the functions that are made of one: tanh and the sigmoid."""

from math import ceil, log

from blockbuster_fusion.printers.c.mathematics.formats import FORMATS, FloatFormat

LN2, LN2_REST = log(2), 2.3190468138462996e-17
"""ln(2), and what is missing in its float64."""
LIMIT = {"float32": 104.0, "float64": 746.0}
"""e^x is infinite from here on, and e^-x is 0."""


TOP = {"float32": 89.0, "float64": 710.0}
"""e^x - 1 is infinite from here on."""


def _reduced(f: FloatFormat, more: int) -> str:
    """Statements: n is x/ln(2) as a whole number, and r = x - n ln(2).

    The lowest bits of `shifted` are n and `more`.
    """
    high, low = f.split(LN2, LN2_REST)
    return f"""\
const {f.c_type} magic = {f.magic(more)}, shifted = x * {f(1 / LN2)} + magic;
    const {f.c_type} n = shifted - magic;
    const {f.c_type} r = (x - n * {high}) - n * {low}, square = r * r;"""


def exp_limited(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
/* e^x = 2^n e^r with |r| <= ln(2)/2, where |x| <= {LIMIT[dtype]:g}. */
INLINE {f.c_type} exp_limited_{dtype}({f.c_type} x) {{
    {_reduced(f, 2 * f.bias)}
    {f.polynomial("exp", "r", "square")}
    return scaled_{dtype}((p * square + r) + {f(1)}, bits_of_{dtype}(shifted));
}}
"""


def exp(dtype: str) -> str:
    """The size is limited: of two limits gcc makes branches, and masks of these."""
    f = FORMATS[dtype]
    return f"""\
INLINE {f.c_type} exp_{dtype}({f.c_type} x) {{
    {_limited(f, LIMIT[dtype])}
    return exp_limited_{dtype}(copysign{f.suffix}(size, x));
}}
"""


def _limited(f: FloatFormat, limit: float) -> str:
    """Statements: the size of x, or the limit where that is less; NaN stays."""
    return f"""\
{f.c_type} size = fabs{f.suffix}(x);
    size = size > {f(limit)} ? {f(limit)} : size;"""


def exp2_normal(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
/* 2^x, where that is a normal number. */
INLINE {f.c_type} exp2_normal_{dtype}({f.c_type} x) {{
    {_reduced2(f, f.bias)}
    {f.polynomial("exp2", "r", "square")}
    return (p * r + {f(1)}) * two_to_{dtype}(bits_of_{dtype}(shifted));
}}
"""


def exp2(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
INLINE {f.c_type} exp2_{dtype}({f.c_type} x) {{
    {_limited(f, f.bias + f.fraction + 1)}
    x = copysign{f.suffix}(size, x);
    {_reduced2(f, 2 * f.bias)}
    {f.polynomial("exp2", "r", "square")}
    return scaled_{dtype}(p * r + {f(1)}, bits_of_{dtype}(shifted));
}}
"""


def _reduced2(f: FloatFormat, more: int) -> str:
    """Statements: x = n + r with |r| <= 1/2, exactly; the lowest bits of `shifted` have n."""
    return f"""\
const {f.c_type} magic = {f.magic(more)}, shifted = x + magic;
    const {f.c_type} r = x - (shifted - magic), square = r * r;"""


def expm1_limited(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
/* e^x - 1 = 2^n (e^r - 1) + (2^n - 1), halved, because 2^n may overflow; for x <= {TOP[dtype]:g}
   unless 2^n is too small. */
INLINE {f.c_type} expm1_limited_{dtype}({f.c_type} x) {{
    {_reduced(f, f.bias - 1)}
    {f.polynomial("expm1", "r", "square")}
    const {f.c_type} half = two_to_{dtype}(bits_of_{dtype}(shifted));
    return {f(2)} * (half * (p * square + r) + (half - {f(0.5)}));
}}
"""


def expm1(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
INLINE {f.c_type} expm1_{dtype}({f.c_type} x) {{
    {_limited(f, TOP[dtype])}
    const {f.c_type} y = expm1_limited_{dtype}(copysign{f.suffix}(size, x));
    const {f.c_type} least = x < {f(-ceil((f.fraction + 3) * LN2))} ? {f(-1)} : y;
    return size < {f(2.0 ** (-f.fraction - 1))} ? x : least;
}}
"""


def tanh(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
/* tanh(|x|) = -t / (2 + t) for t = e^-2|x| - 1, which is exact near 0. */
INLINE {f.c_type} tanh_{dtype}({f.c_type} x) {{
    {_limited(f, ceil((f.fraction + 4) * LN2 / 2))}
    const {f.c_type} t = expm1_limited_{dtype}({f(-2)} * size);
    const {f.c_type} y = size < {f(2.0 ** (-f.fraction // 2 - 2))} ? size : -t / ({f(2)} + t);
    return copysign{f.suffix}(y, x);
}}
"""


def sigmoid(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
/* 1 / (1 + e^-x), by e^-|x|: neither overflows, and small results keep their digits. */
INLINE {f.c_type} sigmoid_{dtype}({f.c_type} x) {{
    {_limited(f, LIMIT[dtype])}
    const {f.c_type} t = exp_limited_{dtype}(-size);
    return (x < 0 ? t : {f(1)}) / ({f(1)} + t);
}}
"""
