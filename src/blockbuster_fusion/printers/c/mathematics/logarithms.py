"""Logarithms in C."""

from blockbuster_fusion.printers.c.mathematics.exponentials import LN2, LN2_REST
from blockbuster_fusion.printers.c.mathematics.formats import FORMATS, FloatFormat

SQRT_HALF = {"float32": 0x3504F3, "float64": 0x6A09E667F3BCD}
"""The fraction of sqrt(1/2), whose exponent is -1."""
SCALES = {
    "log": (LN2, LN2_REST, 1.0, 0.0),
    "log2": (1.0, 0.0, 1 / LN2, 2.0355273740931033e-17),
    "log10": (
        0.3010299956639812,
        -2.8037281277851704e-18,
        0.4342944819032518,
        1.098319650216765e-17,
    ),
}
"""By base: the logarithms of 2 and of e, each with the rest that is missing in its float64."""


def parts(dtype: str) -> str:
    """The exponent and the significand of a number."""
    f = FORMATS[dtype]
    one, root = f.bits_of(f.bias), f.bits_of(f.bias - 1, SQRT_HALF[dtype])
    mask, whole = f.bits_of(0, (1 << f.fraction) - 1), f.bits_of(f.bias + f.fraction)
    return f"""\
/* The exponent e of a normal number x = 2^e m with sqrt(1/2) <= m < sqrt(2), plus {f.bias}. */
INLINE {f.whole} raised_exponent_{dtype}({f.c_type} x) {{
    return (bits_of_{dtype}(x) + ({one} - {root})) >> {f.fraction};
}}

/* The significand m. */
INLINE {f.c_type} significand_{dtype}({f.c_type} x) {{
    const {f.whole} moved = bits_of_{dtype}(x) + ({one} - {root});
    return {dtype}_of_bits((moved & {mask}) + {root});
}}

/* e as a float. */
INLINE {f.c_type} exponent_{dtype}({f.whole} raised) {{
    return {dtype}_of_bits(raised | {whole}) - {f(2.0**f.fraction + f.bias)};
}}
"""


def _series(f: FloatFormat, name: str) -> str:
    """Statements: y is the logarithm of 2^n (1+f), with n as a float."""
    two, two_rest, e, e_rest = SCALES[name]
    high, low = f.split(two, two_rest)
    first, rest = f.split(e, e_rest, spare=False)
    small = [f"f * {rest}"] if name != "log" else []
    small += [f"n * {low}"] if name != "log2" else []
    exponent = "n" if name == "log2" else f"n * {high}"
    top = "f" if name == "log" else f"f * {first}"
    return f"""\
{_tail(f, name)}
    const {f.c_type} rest = {" + ".join([*small, "tail"])};
    const {f.c_type} y = {exponent} + ({top} + rest);"""


def _tail(f: FloatFormat, name: str) -> str:
    """Statements: the tail is what the logarithm of 1+f has beyond its first term."""
    if f.dtype == "float32":
        made = f.polynomial(name, "f", "square")
        return f"const float square = f * f;\n    {made}\n    const float tail = p * square;"
    scale = "" if name == "log" else f" * {f(SCALES[name][2])}"
    return f"""\
const {f.c_type} s = f / (f + {f(2)}), z = s * s, zz = z * z, half = {f(0.5)} * f * f;
    {f.polynomial("log_odd", "z", "zz")}
    const {f.c_type} tail = (s * (half + z * p) - half){scale};"""


def logarithm(name: str, dtype: str) -> str:
    """A logarithm: of e, of 2 or of 10."""
    f = FORMATS[dtype]
    shift = f.fraction + 1
    return f"""\
/* {name}(2^n (1+f)) for sqrt(1/2) <= 1+f < sqrt(2). */
INLINE {f.c_type} {name}_{dtype}({f.c_type} x) {{
    const {f.c_type} scale = x < {f.least} ? {f(2.0**shift)} : {f(1)};
    const {f.c_type} normal = x * scale;
    const {f.c_type} lowered = x < {f.least} ? {f(shift)} : {f(0)};
    const {f.c_type} n = exponent_{dtype}(raised_exponent_{dtype}(normal)) - lowered;
    const {f.c_type} f = significand_{dtype}(normal) - {f(1)};
    {_series(f, name)}
    const {f.c_type} finite = x < INFINITY ? y : x, least = x == 0 ? (-INFINITY) : NAN;
    return x > 0 ? finite : least;
}}
"""


def log1p(dtype: str) -> str:
    f = FORMATS[dtype]
    large = f(2.0 ** (f.bias - 27))
    return f"""\
/* log(1+x) for 1+x = 2^n (1+f), where f = 2^-n x + (2^-n - 1) has no rounding of 1+x. */
INLINE {f.c_type} log1p_{dtype}({f.c_type} x) {{
    const {f.c_type} v = x > {large} ? x * {f(0.25)} : x;
    const {f.whole} raised = raised_exponent_{dtype}({f(1)} + v);
    const {f.c_type} n = exponent_{dtype}(raised) + (x > {large} ? {f(2)} : {f(0)});
    const {f.c_type} t = {dtype}_of_bits(({2 * f.bias}u - raised) << {f.fraction});
    const {f.c_type} f = v * t + (t - {f(1)});
    {_series(f, "log")}
    const {f.c_type} finite = ((x < INFINITY) & (x != 0)) ? y : x;
    const {f.c_type} least = x == {f(-1)} ? (-INFINITY) : NAN;
    return x > {f(-1)} ? finite : least;
}}
"""
