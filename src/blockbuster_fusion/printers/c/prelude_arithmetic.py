"""Scalar functions of the C prelude."""

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.operators import C_TYPES

EXP = """\
/* e^x = 2^n e^r with |r| <= ln(2)/2; the error is about 1e-7. */
INLINE float exp_float32(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = x * 1.44269504f + magic;
    float n = shifted - magic;
    float r = x - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    int32_t exponent = bits - 0x4b400000, half = exponent >> 1;
    int32_t first = (half + 127) * (1 << 23), second = (exponent - half + 127) * (1 << 23);
    float a, b;
    memcpy(&a, &first, 4);
    memcpy(&b, &second, 4);
    return x != x ? x : p * a * b;
}
"""

EXP2 = """\
/* 2^x = 2^n e^(r ln 2) with |r| <= 1/2, which is exact; the error is about 1e-7. */
INLINE float exp2_float32(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    x = x < -150.0f ? -150.0f : x;
    x = x > 128.0f ? 128.0f : x;
    float shifted = x + magic;
    float r = (x - (shifted - magic)) * 0.693147182f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    int32_t exponent = bits - 0x4b400000, half = exponent >> 1;
    int32_t first = (half + 127) * (1 << 23), second = (exponent - half + 127) * (1 << 23);
    float a, b;
    memcpy(&a, &first, 4);
    memcpy(&b, &second, 4);
    return x != x ? x : p * a * b;
}
"""


def _type(dtype: str) -> str:
    return C_TYPES[DType(dtype)]


def extremum(name: str, dtype: str, sign: str) -> str:
    c_type = _type(dtype)
    nan = " || a != a" if "float" in dtype else ""
    return f"""\
INLINE {c_type} {name}_{dtype}({c_type} a, {c_type} b) {{
    return a {sign}= b{nan} ? a : b;
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
