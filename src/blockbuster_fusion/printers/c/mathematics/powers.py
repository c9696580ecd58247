"""Powers in C: 2^(y log2|x|), with the logarithm in more digits than the result."""

from blockbuster_fusion.printers.c.mathematics.formats import FLOAT64, FORMATS, polynomial
from blockbuster_fusion.printers.c.mathematics.polynomials import POLYNOMIALS

FIRST = (2.8853900817779268, 4.0710547481862066e-17)
SECOND = (0.9617966939259756, 5.0577616648125907e-17)
"""2/ln(2) and 2/(3 ln(2)), each with what is missing in its float64."""


def pow_size(dtype: str) -> str:
    """The power of a positive number, also of 0, infinity and NaN."""
    return _size_float32() if dtype == "float32" else _size_float64()


def _size_float32() -> str:
    """In double, whose rounding errors do not matter in a float32."""
    f = FLOAT64
    return f"""\
/* x^y for x >= 0. */
INLINE float pow_size_float32(float x, float y) {{
    const double a = x, m = significand_float64(a), s = (m - 1.0) / (m + 1.0);
    const double z = s * s, zz = z * z;
    {polynomial(f, POLYNOMIALS["pow_log2", "float32"], "z", "zz", "p")}
    double logarithm = exponent_float64(raised_exponent_float64(a)) + s * p;
    logarithm = a < INFINITY ? logarithm : a;
    logarithm = a == 0 ? (-INFINITY) : logarithm;
    const double wanted = (double)y * logarithm, size = fabs(wanted);
    const double t = copysign(size > 160.0 ? 160.0 : size, wanted);
    const double magic = {f.magic(f.bias)}, shifted = t + magic;
    const double r = t - (shifted - magic), square = r * r;
    {polynomial(f, POLYNOMIALS["pow_exp2", "float32"], "r", "square", "q")}
    return (float)(q * two_to_float64(bits_of_float64(shifted)));
}}
"""


def _size_float64() -> str:
    """The logarithm is a sum of two numbers: its error is multiplied by up to 1075."""
    f = FLOAT64
    return f"""\
/* x^y for x >= 0; names with `_low` continue the digits of the others. */
INLINE double pow_size_float64(double x, double y) {{
    const double scale = x < {f.least} ? {f(2.0**54)} : 1.0;
    const double normal = x * scale;
    const double lowered = x < {f.least} ? 54.0 : 0.0;
    const double n = exponent_float64(raised_exponent_float64(normal)) - lowered;
    const double m = significand_float64(normal), over = m - 1.0, under = m + 1.0;
    const double under_low = m - (under - 1.0);
    const double s = over / under, product = product_float64(s, under);
    const double s_low = (((over - product) - product_error_float64(s, under, product))
        - s * under_low) / under;
    const double z = product_float64(s, s);
    const double z_low = product_error_float64(s, s, z) + 2.0 * s * s_low;
    const double zz = z * z;
    {f.polynomial("pow_odd", "z", "zz")}
    p = product_float64(p, z);
    const double first = {f(FIRST[0])}, first_low = {f(FIRST[1])};
    const double second = {f(SECOND[0])}, second_low = {f(SECOND[1])};
    const double u = second + p, u_low = (p - (u - second)) + second_low;
    const double v = product_float64(z, u);
    const double v_low = product_error_float64(z, u, v) + (z * u_low + z_low * u);
    const double w = first + v, w_low = ((v - (w - first)) + v_low) + first_low;
    const double l = product_float64(s, w);
    const double l_low = product_error_float64(s, w, l) + (s * w_low + s_low * w);
    double logarithm = n + l, low = (l - (logarithm - n)) + l_low;
    logarithm = x < INFINITY ? logarithm : x;
    logarithm = x == 0 ? (-INFINITY) : logarithm;
    const double wanted = product_float64(y, logarithm), size = fabs(wanted);
    const double t_low = product_error_float64(y, logarithm, wanted) + y * low;
    const double rest = size < 1100.0 ? t_low : 0.0;
    const double t = copysign(size > 1100.0 ? 1100.0 : size, wanted);
    const double magic = {f.magic(2 * f.bias)}, shifted = t + magic;
    const double r = (t - (shifted - magic)) + rest, square = r * r;
    {f.polynomial("exp2", "r", "square", "q")}
    return scaled_float64(q * r + 1.0, bits_of_float64(shifted));
}}
"""


def power(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
/* x^y as C defines it: with signs, zeros, infinities and NaN. */
INLINE {f.c_type} pow_{dtype}({f.c_type} x, {f.c_type} y) {{
    const {f.c_type} size = fabs{f.suffix}(x), half = {f(0.5)} * y;
    {f.c_type} r = pow_size_{dtype}(size, y);
    r = size == {f(1)} ? {f(1)} : r;
    const {f.c_type} signed_r = trunc{f.suffix}(half) != half ? copysign{f.suffix}(r, x) : r;
    r = trunc{f.suffix}(y) == y ? signed_r : r;
    r = ((x < 0) & (x > (-INFINITY)) & (trunc{f.suffix}(y) != y)) ? NAN : r;
    return ((y == 0) | (x == {f(1)})) ? {f(1)} : r;
}}
"""
