"""Bytes, times and counts in words."""


def amount(count: int, unit: str = "B") -> str:
    """A number in a unit that leaves one to four digits: 12.3 kB are 12,300 bytes."""
    number = float(count)
    for prefix in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g} {prefix}{unit}".rstrip()
        number /= 1000
    return f"{number:.4g} T{unit}"


def duration(seconds: float) -> str:
    """A time in a unit that leaves one to four digits."""
    return durations(seconds)[0]


def durations(first: float, *others: float) -> list[str]:
    """Times in the unit of the first one, so that they can be compared."""
    units = (("µs", 1e6), ("ms", 1e3), ("s", 1.0))
    fitting = (x for x in units if first * x[1] < 9999.5)
    unit, factor = next(fitting, units[-1])
    return [f"{seconds * factor:.4g} {unit}" for seconds in (first, *others)]


def timed(seconds: float, basis: str = "") -> str:
    """A time with its source: predicted, measured, or "at least" for a bound."""
    shown = duration(seconds)
    return f"at least {shown}" if basis == "at least" else f"{shown} {basis}".rstrip()


def counted(count: int, what: str) -> str:
    """A number of things."""
    return f"{count} {what}{'' if count == 1 else 's'}"
