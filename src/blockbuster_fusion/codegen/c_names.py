"""Identifiers of generated C: none means two things, whatever a program calls its arrays."""

from collections.abc import Hashable

# fmt: off
_KEYWORDS = [
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else",
    "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register",
    "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef",
    "union", "unsigned", "void", "volatile", "while", "asm", "typeof", "bool", "true", "false",
    "main", "NULL", "NAN", "INFINITY",
]

_TYPES = [
    "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t",
    "size_t", "bfloat16", "_Float16",
]

_LIBRARY = [
    "exp", "expf", "exp2", "exp2f", "expm1", "expm1f", "log", "logf", "log2", "log2f", "log10",
    "log10f", "log1p", "log1pf", "sqrt", "sqrtf", "cbrt", "cbrtf", "sin", "sinf", "cos", "cosf",
    "tan", "tanf", "asin", "asinf", "acos", "acosf", "atan", "atanf", "atan2", "atan2f", "sinh",
    "sinhf", "cosh", "coshf", "tanh", "tanhf", "asinh", "asinhf", "acosh", "acoshf", "atanh",
    "atanhf", "erf", "erff", "floor", "floorf", "ceil", "ceilf", "rint", "rintf", "trunc",
    "truncf", "round", "fabs", "fabsf", "fmod", "fmodf", "pow", "powf", "abs", "free", "malloc",
    "calloc", "memcpy", "memset", "aligned_alloc", "exit", "printf", "gamma", "j0", "j1", "jn",
    "y0", "y1", "yn", "index", "signgam", "rand", "time",
]

_OWN = [
    "INLINE", "MIN", "MAX", "BLOCKS", "LANES", "PADDED", "VECTOR", "ROWS", "WIDE", "reserve",
    "allocate", "claim", "memory", "program", "programs", "bytes", "next", "buffers", "strides",
    "sizes", "threads", "lanes", "row", "at", "w", "x", "room", "check", "sample",
    "on_axis", "outside", "astray",
]
# fmt: on

RESERVED = frozenset([*_KEYWORDS, *_TYPES, *_LIBRARY, *_OWN])
"""What no array, axis or kernel may be called in C."""

_PREFIXES = (
    *("contract_", "load_", "store_", "take_", "maximum_", "minimum_", "sign_"),
    *("floordiv_", "mod_", "exp_", "widened_", "narrowed_"),
)


class Identifiers:
    """Gives each thing a name of its own, the wanted one where that is free."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.known: dict[Hashable, str] = {}

    def __call__(self, thing: Hashable, wanted: str) -> str:
        if thing not in self.known:
            name, number = wanted, 2
            while name in self.taken or is_reserved(name):
                name, number = f"{wanted}_{number}", number + 1
            self.taken.add(name)
            self.known[thing] = name
        return self.known[thing]


def is_reserved(name: str) -> bool:
    """Whether a name means something in every generated file: locals like c1 and i1 do, too."""
    local = name[:1] in ("c", "i") and name[1:].isdigit()
    return name in RESERVED or name.startswith(_PREFIXES) or local
