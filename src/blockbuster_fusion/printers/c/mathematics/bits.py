"""Floats as bits, powers of two, and products without rounding: what the functions build on."""

from blockbuster_fusion.printers.c.mathematics.formats import FORMATS


def bits(dtype: str) -> str:
    """Conversions between a float and its bits."""
    f = FORMATS[dtype]
    return f"""\
INLINE {f.whole} bits_of_{dtype}({f.c_type} x) {{
    {f.whole} bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}}

INLINE {f.c_type} {dtype}_of_bits({f.whole} bits) {{
    {f.c_type} x;
    memcpy(&x, &bits, sizeof x);
    return x;
}}
"""


def scaling(dtype: str) -> str:
    """Powers of two; an exponent is in the lowest bits of a word, of a sum with a magic number."""
    f = FORMATS[dtype]
    return f"""\
/* 2^n, where that is a normal number; the word has n + {f.bias}. */
INLINE {f.c_type} two_to_{dtype}({f.whole} raised) {{
    return {dtype}_of_bits(raised << {f.fraction});
}}

/* p 2^n, in two steps: the result may be denormal or infinite. The word has n + {2 * f.bias}. */
INLINE {f.c_type} scaled_{dtype}({f.c_type} p, {f.whole} raised) {{
    const {f.whole} half = raised >> 1;
    return p * two_to_{dtype}(half) * two_to_{dtype}(raised - half);
}}
"""


def exact(dtype: str) -> str:
    """Sums and products whose rounding errors are known, of float64 alone.

    A compiler may fuse a product with a sum, and then the product is not rounded. So the product
    that an error belongs to is itself written as a fused one, with zero.
    """
    if dtype != "float64":
        return ""
    return """\
#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMA)
INLINE double product_float64(double a, double b) { return __builtin_fma(a, b, 0.0); }

/* a b - p, exactly, for the rounded product p. */
INLINE double product_error_float64(double a, double b, double p) {
    return __builtin_fma(a, b, -p);
}
#else
INLINE double product_float64(double a, double b) { return a * b; }

INLINE double product_error_float64(double a, double b, double p) {
    const double x = a * 134217729.0, y = b * 134217729.0;
    const double a_high = x - (x - a), b_high = y - (y - b);
    const double a_low = a - a_high, b_low = b - b_high;
    return ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low;
}
#endif

/* a + b - sum, exactly, for the rounded sum. */
INLINE double sum_error_float64(double a, double b, double sum) {
    const double other = sum - a;
    return (a - (sum - other)) + (b - other);
}
"""
