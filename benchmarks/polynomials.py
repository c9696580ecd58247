"""Fits the polynomials of the mathematics in C, and prints those that differ from the kept ones.

    python benchmarks/polynomials.py           # needs mpmath; takes a minute

Each is a minimax fit by Remez's algorithm. Its lowest coefficient is rounded, and the others are
fitted again by least squares, and so on. Of a float64 polynomial the fifth and all later ones are
rounded at once. Tables have a polynomial for each of 16 intervals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath as mp
import numpy as np

from blockbuster_fusion.printers.c.mathematics.batches import ERF_STEPS, TANH_LOW, TANH_TOP
from blockbuster_fusion.printers.c.mathematics.error_function import CUT, TOP
from blockbuster_fusion.printers.c.mathematics.polynomials import POLYNOMIALS
from blockbuster_fusion.printers.c.mathematics.tables import TABLES

mp.mp.dps = 60
NUDGE = mp.mpf(10) ** -20
NEAR_ZERO = mp.mpf(10) ** -18
OVER = mp.mpf("0.502")
"""Half of an interval of a table, and a little more."""
Real = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True, slots=True)
class Fit:
    """A function on an interval, and the weight of its errors."""

    function: Real
    limit: mp.mpf | None
    """The value at 0, where the formula has none."""
    low: mp.mpf
    high: mp.mpf
    weight: Real
    rounded_to: str
    """The dtype of the coefficients."""

    def at(self, x: mp.mpf) -> mp.mpf:
        is_limit = self.limit is not None and abs(x) < NEAR_ZERO
        return self.limit if is_limit else self.function(x)


def remez(fit: Fit, terms: int, steps: int = 12, grid: int = 600) -> list[mp.mpf]:
    """The coefficients whose largest weighted error is least."""
    middle, half = (fit.low + fit.high) / 2, (fit.high - fit.low) / 2
    points = [middle - half * mp.cos(mp.pi * i / grid) for i in range(grid + 1)]
    values, weights = [fit.at(x) for x in points], [fit.weight(x) for x in points]
    nodes = [
        middle - half * mp.cos(mp.pi * (2 * i + 1) / (2 * terms + 2)) for i in range(terms + 1)
    ]
    best: tuple[mp.mpf, list[mp.mpf]] | None = None
    for _ in range(steps):
        found = _levelled(fit, nodes, terms)
        errors = [
            (value - mp.polyval(found[::-1], x)) * weight
            for x, value, weight in zip(points, values, weights, strict=True)
        ]
        largest = max(map(abs, errors))
        if best is None or largest < best[0]:
            best = largest, found
        peaks = _peaks(errors, terms + 1)
        if len(peaks) <= terms:
            break
        nodes = [points[i] for i in peaks]
    assert best is not None
    return best[1]


def _levelled(fit: Fit, nodes: Sequence[mp.mpf], terms: int) -> list[mp.mpf]:
    """The coefficients whose errors at the nodes are equal, with signs in turn."""
    matrix, right = mp.matrix(terms + 1, terms + 1), mp.matrix(terms + 1, 1)
    for i, x in enumerate(nodes):
        for j in range(terms):
            matrix[i, j] = x**j
        matrix[i, terms] = (-1) ** i / fit.weight(x)
        right[i] = fit.at(x)
    return list(mp.lu_solve(matrix, right))[:terms]


def _peaks(errors: Sequence[mp.mpf], count: int) -> list[int]:
    """The places of the largest errors between changes of sign, at most `count`."""
    found, current = [], 0
    for i, error in enumerate(errors):
        if error * errors[current] <= 0 and i > 0:
            found.append(current)
            current = i
        elif abs(error) > abs(errors[current]):
            current = i
    found.append(current)
    while len(found) > count:
        found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
    return found


def least_squares(fit: Fit, known: Sequence[mp.mpf], terms: int, grid: int = 300) -> list[mp.mpf]:
    """The coefficients after those that are known."""
    middle, half = (fit.low + fit.high) / 2, (fit.high - fit.low) / 2
    points = [middle - half * mp.cos(mp.pi * (2 * i + 1) / (2 * grid)) for i in range(grid)]
    powers = range(len(known), terms)
    rows = [[x**power * fit.weight(x) for power in powers] for x in points]
    left = [(fit.at(x) - mp.polyval([*known][::-1], x)) * fit.weight(x) for x in points]
    matrix, right = mp.matrix(len(powers), len(powers)), mp.matrix(len(powers), 1)
    for j in range(len(powers)):
        right[j] = mp.fsum(row[j] * value for row, value in zip(rows, left, strict=True))
        for k in range(len(powers)):
            matrix[j, k] = mp.fsum(row[j] * row[k] for row in rows)
    return list(mp.lu_solve(matrix, right))


def rounded(fit: Fit, terms: int) -> tuple[float, ...]:
    """The coefficients of a fit in its dtype."""

    def round_one(value: mp.mpf) -> float:
        return float(np.float32(value)) if fit.rounded_to == "float32" else float(value)

    known = [round_one(remez(fit, terms)[0])]
    while len(known) < terms:
        found = [round_one(value) for value in least_squares(fit, [*map(mp.mpf, known)], terms)]
        known += found if fit.rounded_to == "float64" and len(known) == 4 else found[:1]
    return tuple(known)


def fits() -> dict[tuple[str, str], Fit]:
    """Every polynomial of the table."""
    two, ten = mp.log(2), mp.log(10)
    half, root = mp.mpf("0.34658"), mp.sqrt(2)
    odd_end = mp.mpf("0.02945")
    made: dict[tuple[str, str], Fit] = {}

    def odd(z: mp.mpf) -> mp.mpf:
        s = mp.sqrt(z)
        return (2 * mp.atanh(s) - 2 * s) / (s * z)

    for dtype in ("float32", "float64"):
        cut = mp.mpf(str(CUT[dtype]))
        top = mp.mpf(str(TOP[dtype]))
        angle = mp.mpf("0.657" if dtype == "float32" else "0.61686")
        made["exp", dtype] = Fit(
            lambda x: (mp.exp(x) - 1 - x) / x**2, mp.mpf(0.5), -half, half,
            lambda x: x**2 * mp.exp(-x) + NUDGE, dtype,
        )  # fmt: skip
        made["expm1", dtype] = Fit(
            lambda x: (mp.exp(x) - 1 - x) / x**2, mp.mpf(0.5), -half, half,
            lambda x: abs(x**2 / mp.expm1(x)) if abs(x) > NEAR_ZERO else NEAR_ZERO, dtype,
        )  # fmt: skip
        made["exp2", dtype] = Fit(
            lambda x: (2**x - 1) / x, two, mp.mpf(-0.5001), mp.mpf(0.5001),
            lambda x: abs(x) * 2**-x + NUDGE, dtype,
        )  # fmt: skip
        made["sin", dtype] = Fit(
            lambda z: (mp.sin(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z) ** 3, -mp.mpf(1) / 6,
            mp.mpf(0), angle, lambda z: z + NUDGE, dtype,
        )  # fmt: skip
        made["cos", dtype] = Fit(
            lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, mp.mpf(1) / 24,
            mp.mpf(0), angle, lambda z: z**2 + NUDGE, dtype,
        )  # fmt: skip
        made["erf_small", dtype] = Fit(
            lambda z: (mp.erf(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z), 2 / mp.sqrt(mp.pi) - 1,
            mp.mpf(0), cut**2 + mp.mpf("1e-3"), lambda z: mp.mpf(1), dtype,
        )  # fmt: skip
        made["erf_large", dtype] = Fit(
            lambda x: -mp.log(mp.erfc(x), 2), None, cut - mp.mpf("1e-3"), top, mp.erfc, dtype
        )
    short = two / 32 * mp.mpf("1.001")
    made["exp_short", "float32"] = Fit(
        lambda x: (mp.exp(x) - 1 - x) / x**2, mp.mpf(0.5), -short, short,
        lambda x: x**2 * mp.exp(-x) + NUDGE, "float32",
    )  # fmt: skip
    made["sin_half", "float32"] = Fit(
        lambda z: (mp.sin(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z) ** 3, -mp.mpf(1) / 6,
        mp.mpf(0), mp.mpf("2.481"),
        lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)) if z > NEAR_ZERO else NUDGE, "float32",
    )  # fmt: skip
    for name, base in (("log", mp.mpf(1)), ("log2", two), ("log10", ten)):
        made[name, "float32"] = Fit(
            lambda f, base=base: (mp.log1p(f) - f) / base / f**2, -1 / base / 2,
            1 / root - 1 - mp.mpf("1e-4"), root - 1 + mp.mpf("1e-4"),
            lambda f, base=base: abs(f**2 / (mp.log1p(f) / base)) if abs(f) > NEAR_ZERO
            else NEAR_ZERO, "float32",
        )  # fmt: skip
    made["log_odd", "float64"] = Fit(
        odd, mp.mpf(2) / 3, mp.mpf(0), odd_end, lambda z: z / 2 + NUDGE, "float64"
    )
    made["pow_log2", "float32"] = Fit(
        lambda z: mp.atanh(mp.sqrt(z)) / mp.sqrt(z) * 2 / two, 2 / two,
        mp.mpf(0), odd_end, lambda z: mp.mpf(1) / 3, "float64",
    )  # fmt: skip
    made["pow_odd", "float64"] = Fit(
        lambda z: (odd(z) - mp.mpf(2) / 3) / z / two, mp.mpf(2) / 5 / two,
        mp.mpf(0), odd_end, lambda z: z**2 / 2 + NUDGE, "float64",
    )  # fmt: skip
    made["pow_exp2", "float32"] = Fit(
        lambda x: 2**x, None, mp.mpf(-0.5001), mp.mpf(0.5001), lambda x: 2**-x, "float64"
    )
    return made


def tables() -> dict[str, list[tuple[float, ...]]]:
    """Every table of polynomials, with a row for each interval."""
    step = mp.mpf(str(ERF_STEPS))
    edges = [(max(mp.mpf(0), (i - OVER) / step), (i + OVER) / step) for i in range(16)]
    of_erf = [piece(mp.erf, low, high, 5, first=1) for low, high in edges]
    of_tanh: list[tuple[float, ...]] = [()] * 16
    for i in range(16):
        low, high = (mp.ldexp(TANH_LOW, n // 2) * (1 + mp.mpf(n % 2) / 2) for n in (i, i + 1))
        place = int(np.float32(low).view(np.uint32)) >> 22 & 15
        begin, end = low if i else mp.mpf(0), min(high, mp.mpf(TANH_TOP))
        beyond = (float(high), 1.0, *[0.0] * 6)
        of_tanh[place] = piece(mp.tanh, begin, end, 6) if begin < end else beyond
    return {"erf": of_erf, "tanh": of_tanh}


def piece(
    function: Real, low: mp.mpf, high: mp.mpf, terms: int, *, first: int = 0
) -> tuple[float, ...]:
    """The centre of an interval, the value there, and the coefficients of powers of the distance.

    That with 0 has it as its centre. There, `first` is left out of the first coefficient.
    """
    if low == 0:
        slope = mp.diff(function, 0) - first
        ratio = Fit(
            lambda d: function(d) / d - first, slope, low, high,
            lambda d: d / function(d) if d > NEAR_ZERO else 1 / (slope + first), "float32",
        )  # fmt: skip
        return (0.0, 0.0, *rounded(ratio, terms))
    centre, value = exact_near(function, (low + high) / 2, high - low)
    rise = Fit(
        lambda d: (function(centre + d) - value) / d, mp.diff(function, centre),
        low - centre, high - centre, lambda d: abs(d) / function(centre + d) + NUDGE, "float32",
    )  # fmt: skip
    return (float(centre), float(value), *rounded(rise, terms))


def exact_near(function: Real, x: mp.mpf, width: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """A float32 near a number, and its value, which is nearly a float32 as well."""
    found = []
    for i in range(-300, 301):
        near = mp.mpf(float(np.float32(x + i * width / 5000)))
        value = function(near)
        kept = np.float32(value)
        error = abs(value - mp.mpf(float(kept))) / mp.mpf(float(np.spacing(kept)))
        found.append((error, near, mp.mpf(float(kept))))
    return min(found)[1:]


def main() -> None:
    for key, fit in fits().items():
        kept = POLYNOMIALS[key]
        found = rounded(fit, len(kept))
        same = [np.float32(a) == np.float32(b) if fit.rounded_to == "float32" else a == b
                for a, b in zip(found, kept, strict=True)]  # fmt: skip
        print(f"{key[0]:10} {key[1]} {len(kept):3} {'as kept' if all(same) else found}", flush=True)
    for name, rows in tables().items():
        for row, kept in zip(rows, TABLES[name], strict=True):
            same = np.array_equal(np.float32(row), np.float32(kept))
            shown = tuple(float(str(np.float32(x))) for x in row)
            print(f"{name:10} table {'as kept' if same else shown}", flush=True)


if __name__ == "__main__":
    main()
