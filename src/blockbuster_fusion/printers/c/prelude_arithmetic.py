"""Scalar functions of the C prelude."""

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.operators import C_TYPES


def _type(dtype: str) -> str:
    return C_TYPES[DType(dtype)]


def extremum(name: str, dtype: str, sign: str) -> str:
    """A maximum or minimum: one instruction, and for floats two more, by which NaN stays.

    Of equal numbers it is the first.
    """
    c_type = _type(dtype)
    nan = "b != b ? b : " if "float" in dtype else ""
    return f"""\
INLINE {c_type} {name}_{dtype}({c_type} a, {c_type} b) {{
    const {c_type} chosen = b {sign} a ? b : a;
    return {nan}chosen;
}}
"""


def product(name: str, dtype: str, factors: str) -> str:
    """A small whole power of a number, as a product."""
    c_type = _type(dtype)
    return f"""\
INLINE {c_type} {name}_{dtype}({c_type} x) {{
    return {factors};
}}
"""


def sign(dtype: str) -> str:
    c_type = _type(dtype)
    return f"""\
INLINE {c_type} sign_{dtype}({c_type} x) {{
    return x > 0 ? 1 : x < 0 ? -1 : x;
}}
"""


def truncation(source: str, dtype: str) -> str:
    """A conversion of floats to integers; in C the result out of range is undefined."""
    bits = 63 if dtype == "int64" else 31
    bound = f"0x1p{bits}{'' if source == 'float64' else 'f'}"
    return f"""\
INLINE {dtype}_t whole_{source}_{dtype}({_type(source)} x) {{
    return x >= -{bound} && x < {bound} ? ({dtype}_t)x : {dtype.upper()}_MIN;
}}
"""


def floor_division(dtype: str) -> str:
    c_type = _type(dtype)
    if "float" in dtype:
        suffix = "" if c_type == "double" else "f"
        return f"""\
INLINE {c_type} floordiv_{dtype}({c_type} a, {c_type} b) {{
    {c_type} r = fmod{suffix}(a, b), q = (a - r) / b;
    if (b == 0) return a / b;
    if (r != 0 && (r < 0) != (b < 0)) q -= 1;
    if (q == 0) return copysign{suffix}(0, a / b);
    {c_type} whole = floor{suffix}(q);
    return q - whole > ({c_type})0.5 ? whole + 1 : whole;
}}
"""
    return f"""\
INLINE {c_type} floordiv_{dtype}({c_type} a, {c_type} b) {{
    if (b == 0) return 0;
    if (b == -1) return ({c_type})(0 - (uint64_t)a);
    return a % b != 0 && (a % b < 0) != (b < 0) ? a / b - 1 : a / b;
}}
"""


def modulo(dtype: str) -> str:
    c_type = _type(dtype)
    if "float" in dtype:
        suffix = "" if c_type == "double" else "f"
        return f"""\
INLINE {c_type} mod_{dtype}({c_type} a, {c_type} b) {{
    {c_type} r = fmod{suffix}(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}}
"""
    return f"""\
INLINE {c_type} mod_{dtype}({c_type} a, {c_type} b) {{
    {c_type} r = b == 0 || b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}}
"""
