"""The error function in C."""

from blockbuster_fusion.printers.c.mathematics.formats import FORMATS

CUT = {"float32": 0.9, "float64": 1.0}
"""Below it the function is an odd polynomial; above it is 1 - 2^-g(x) with a polynomial g."""
TOP = {"float32": 3.95, "float64": 5.95}
"""From here on the function is 1."""


def erf(dtype: str) -> str:
    f = FORMATS[dtype]
    return f"""\
/* x + x p(x^2) for small x, and 1 - 2^-g(x) for others. */
INLINE {f.c_type} erf_{dtype}({f.c_type} x) {{
    {f.c_type} size = fabs{f.suffix}(x);
    size = size > {f(TOP[dtype])} ? {f(TOP[dtype])} : size;
    const {f.c_type} square = size * size, fourth = square * square;
    {f.polynomial("erf_small", "square", "fourth")}
    {f.polynomial("erf_large", "size", "square", "g")}
    const {f.c_type} large = {f(1)} - exp2_normal_{dtype}(-g);
    const {f.c_type} y = size < {f(CUT[dtype])} ? size * p + size : large;
    return copysign{f.suffix}(y, x);
}}
"""
