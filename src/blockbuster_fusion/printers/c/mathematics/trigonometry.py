"""Sines and cosines in C, exact for arguments of any size.

An argument is multiplied by 2/pi, of which only those bits matter that give quarter turns below
four and their fractions. Which bits these are depends on the exponent of the argument.
"""

from math import pi

from blockbuster_fusion.printers.c.mathematics.formats import (
    FLOAT32,
    FLOAT64,
    FORMATS,
    polynomial,
)
from blockbuster_fusion.printers.c.mathematics.polynomials import POLYNOMIALS

TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921c"
    "fe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980f"
    "ef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08"
    "56033046fc7b6babf0cfbc209af4361d",
    16,
)
DIGITS = 1280
"""2/pi times 2^1280, as a whole number."""
HALF_PI_REST = 6.123233995736766e-17
"""What is missing in the float64 of pi/2."""
FLOAT32_LIMITS = (48, 70, 92, 114)
"""Exponents at which a float32 needs other bits of 2/pi."""
PI_PARTS = (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15)
"""Float32 numbers whose sum is pi."""
REACH = 65536.0
"""The largest size of a float32 that is usual: those three parts are enough for its sine."""
FLOAT64_FIRST, FLOAT64_STEP = 26, 32
"""Exponents at which a float64 needs other bits: the first, and the distance to the next."""


def window(top: int, count: int, scale: int = 0) -> list[float]:
    """So many floats of 53 bits each; their sum is 2/pi without its bits above 2^top.

    They are multiplied by 2^scale.
    """
    left = TWO_OVER_PI & ((1 << (DIGITS + top + 1)) - 1)
    found = []
    for number in range(count):
        lowest = max(0, DIGITS + top + 1 - 53 * (number + 1))
        part = left >> lowest
        left -= part << lowest
        found.append(float(part) * 2.0 ** (lowest - DIGITS + scale))
    return found


def turns(dtype: str) -> str:
    return _turns_float32() if dtype == "float32" else _turns_float64()


def _turns_float32() -> str:
    """The reduction of a float32, in double: the bits are chosen by comparisons."""
    f = FLOAT64
    windows = [window(-1, 2), *(window(24 - limit, 2) for limit in FLOAT32_LIMITS)]
    high, low = (f(part) for part in windows[0])
    choices = ""
    for limit, parts in zip(FLOAT32_LIMITS, windows[1:], strict=True):
        is_large = f"size >= {f(2.0**limit)}"
        choices += f"    high = {is_large} ? {f(parts[0])} : high;\n"
        choices += f"    low = {is_large} ? {f(parts[1])} : low;\n"
    return f"""\
/* x = (n + f) pi/2: r is f pi/2, and the quadrant has the lowest bits of n. */
INLINE float turns_float32(float x, uint32_t *quadrant) {{
    const double y = x, size = fabs(y);
    double high = {high}, low = {low};
{choices}\
    const double p = product_float64(y, high);
    const double shifted = p + {f.magic()}, n = shifted - {f.magic()};
    const double rest = product_error_float64(y, high, p) + y * low;
    *quadrant = (uint32_t)bits_of_float64(shifted);
    return (float)(((p - n) + rest) * {f(pi / 2)});
}}
"""


def _turns_float64() -> str:
    """The reduction of a float64: the bits are looked up by the exponent."""
    f = FLOAT64
    biased = f.bias + FLOAT64_FIRST
    last = (2 * f.bias + 1 - biased) // FLOAT64_STEP + 1
    rows = [window(-1, 4)]
    for number in range(last):
        scale = FLOAT64_FIRST + FLOAT64_STEP * number
        rows.append(window(53 - scale, 4, scale))
    count = len(rows)
    table = "".join(f"    {f(part)},\n" for column in zip(*rows, strict=True) for part in column)
    first = f.bias + FLOAT64_FIRST - FLOAT64_STEP
    return f"""\
/* 2/pi without the bits that give multiples of four turns, by ranges of the exponent: first the
   highest digits of all ranges, then the next. */
static const double two_over_pi[] = {{
{table}}};

/* x = (n + f) pi/2: r and `beyond` together are f pi/2; the quadrant has the lowest bits of n. */
INLINE double turns_float64(double x, uint64_t *quadrant, double *beyond) {{
    const uint64_t exponent = bits_of_float64(x) >> 52 & 0x7ff;
    const uint64_t large = 0u - (({biased - 1}u - exponent) >> 63); /* all bits, or none */
    const int64_t row = (int64_t)((exponent - {first}u) >> 5 & large);
    const uint64_t scale = (((uint64_t)row << 5) - {FLOAT64_STEP - FLOAT64_FIRST}u) & large;
    const double y = x * two_to_float64({f.bias}u - scale);
    const double p = two_over_pi[row], q = two_over_pi[row + {count}];
    const double v = two_over_pi[row + {2 * count}], w = two_over_pi[row + {3 * count}];
    const double a = product_float64(y, p), a_error = product_error_float64(y, p, a);
    const double b = product_float64(y, q), b_error = product_error_float64(y, q, b);
    const double c = product_float64(y, v), c_error = product_error_float64(y, v, c);
    /* Whole turns are taken away; then all parts are added, the errors of sums included. */
    const double first = a - 4.0 * rint(0.25 * a), second = a_error - 4.0 * rint(0.25 * a_error);
    const double third = b - 4.0 * rint(0.25 * b);
    const double pair = first + second, total = pair + third;
    const double errors =
        sum_error_float64(first, second, pair) + sum_error_float64(pair, third, total);
    const double n = rint(total), fraction = total - n;
    const double s = fraction + errors, t = s + b_error, u = t + c;
    const double low = sum_error_float64(fraction, errors, s) + sum_error_float64(s, b_error, t)
        + sum_error_float64(t, c, u) + (c_error + y * w);
    const double f = u + low, f_low = sum_error_float64(u, low, f);
    const double r = product_float64(f, {f(pi / 2)});
    *beyond = product_error_float64(f, {f(pi / 2)}, r) + (f * {f(HALF_PI_REST)}
        + f_low * {f(pi / 2)});
    *quadrant = bits_of_float64(n + {f.magic()});
    return r;
}}
"""


def sine(name: str, dtype: str) -> str:
    """A sine, or a cosine: a sine one quadrant further."""
    f = FORMATS[dtype]
    declared, turned, more_s, more_c = f"{f.whole} quadrant;", "", "", ""
    if dtype == "float64":
        declared, turned = f"{declared}\n    double beyond;", ", &beyond"
        more_s, more_c = f" + beyond * ({f(1)} - {f(0.5)} * z)", " - r * beyond"
    further = "" if name == "sin" else "\n    quadrant += 1u;"
    tiny = f(2.0 ** -(f.fraction // 2 + 2))
    result = f"fabs{f.suffix}(x) < {tiny} ? x : y" if name == "sin" else "y"
    return f"""\
INLINE {f.c_type} {name}_{dtype}({f.c_type} x) {{
    {declared}
    const {f.c_type} r = turns_{dtype}(x, &quadrant{turned}), z = r * r;
    const {f.c_type} zz = z * z;
    {f.polynomial("sin", "z", "zz", "s")}
    {f.polynomial("cos", "z", "zz", "c")}
    s = r + (s * (z * r){more_s});
    c = {f(1)} - ({f(0.5)} * z - (c * zz{more_c}));{further}
    const {f.c_type} size = (quadrant & 1u) ? c : s;
    const {f.whole} sign = (quadrant >> 1) << {f.sign_bit};
    const {f.c_type} y = {dtype}_of_bits(bits_of_{dtype}(size) ^ sign);
    return {result};
}}
"""


def near(name: str) -> str:
    """A sine, or cosine, of a usual float32, with fused multiply-adds.

    A sine is one of r = x - n pi, and a cosine one of r = x - (n + 1/2) pi.
    """
    f = FLOAT32
    turns, signed, result = f"x * {f(1 / pi)}", "bits_of_float32(shifted)", "x == 0 ? x : y"
    whole = f"shifted - {f.magic()}"
    if name == "cos":
        turns, signed, result = f"{turns} - 0.5f", "~bits_of_float32(shifted)", "y"
        whole = f"({whole}) + 0.5f"
    parts = [f(part) for part in PI_PARTS]
    first, *others = POLYNOMIALS["sin_half", "float32"]
    return f"""\
/* The argument is at most {REACH:g}. */
INLINE float {name}_near_float32(float x) {{
    const float shifted = ({turns}) + {f.magic()}, n = {whole};
    const float high = __builtin_fmaf(-n, {parts[0]}, x);
    const float r = __builtin_fmaf(-n, {parts[2]}, __builtin_fmaf(-n, {parts[1]}, high));
    const float z = r * r;
    {polynomial(f, others, "z", "", "p")}
    const float size = r + r * __builtin_fmaf(z, {f(first)}, z * z * p);
    const float y = float32_of_bits(bits_of_float32(size) ^ {signed} << {f.sign_bit});
    return {result};
}}
"""
