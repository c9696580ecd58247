"""The parts of the vector mathematics, in an order in which each comes after those it calls."""

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial

from blockbuster_fusion.printers.c.expressions import Need
from blockbuster_fusion.printers.c.mathematics import (
    batches,
    bits,
    error_function,
    exponentials,
    logarithms,
    powers,
    trigonometry,
)

DTYPES = ("float64", "float32")
"""The functions of float32 may call those of float64."""

FUNCTIONS: dict[str, Callable[[str], str]] = {
    "exp": exponentials.exp,
    "exp2": exponentials.exp2,
    "expm1": exponentials.expm1,
    "log": partial(logarithms.logarithm, "log"),
    "log2": partial(logarithms.logarithm, "log2"),
    "log10": partial(logarithms.logarithm, "log10"),
    "log1p": logarithms.log1p,
    "tanh": exponentials.tanh,
    "sigmoid": exponentials.sigmoid,
    "erf": error_function.erf,
    "sin": partial(trigonometry.sine, "sin"),
    "cos": partial(trigonometry.sine, "cos"),
    "pow": powers.power,
}
"""The functions that expressions call, each with its text for a dtype."""

OF_BATCHES = {f"{name}_batch": text for name, text in batches.BATCHES.items()}
"""The texts of those of batches, in float32."""

_HELPERS: tuple[Callable[[str], str], ...] = (
    bits.bits,
    bits.scaling,
    bits.exact,
    exponentials.exp2_normal,
    exponentials.exp_limited,
    exponentials.expm1_limited,
    logarithms.parts,
    trigonometry.turns,
    powers.pow_size,
)
_DEFINED = re.compile(r"^(?:INLINE|static const) \w+ (\w+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*")


@cache
def _all() -> tuple[tuple[Need, str], ...]:
    """Every part with its text; the helpers of others have no name that is needed."""
    helpers = [((), helper(dtype)) for helper in _HELPERS for dtype in DTYPES]
    functions = [((n, dtype), text(dtype)) for n, text in FUNCTIONS.items() for dtype in DTYPES]
    near = [trigonometry.near(name) for name in ("sin", "cos")]
    vectors = [((), _guarded(text)) for text in (*batches.vectors(), *near)]
    of_batches = [((name, "float32"), _guarded(text)) for name, text in OF_BATCHES.items()]
    return (*helpers, *functions, *vectors, *of_batches)


def _guarded(text: str) -> str:
    return f"#if {batches.WITH_BATCHES}\n{text}#endif\n"


def mathematics(needs: Collection[Need]) -> list[str]:
    """The texts of the functions that are needed, and before them of those that they call."""
    return list(_backwards(needs))[::-1]


def _backwards(needs: Collection[Need]) -> Iterator[str]:
    called: set[str] = set()
    for need, text in reversed(_all()):
        if need in needs or not called.isdisjoint(_DEFINED.findall(text)):
            called.update(_NAME.findall(text))
            yield text
