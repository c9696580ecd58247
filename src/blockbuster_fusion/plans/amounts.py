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
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 9999.5:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds:.4g} s"


def timed(seconds: float, basis: str = "") -> str:
    """A time with its source: predicted, measured, or "at least" for a bound."""
    shown = duration(seconds)
    return f"at least {shown}" if basis == "at least" else f"{shown} {basis}".rstrip()


def counted(count: int, what: str) -> str:
    """A number of things."""
    return f"{count} {what}{'' if count == 1 else 's'}"
