"""Amounts of bytes in words."""


def amount(count: int) -> str:
    """Bytes in a unit that leaves one to four digits."""
    number = float(count)
    for unit in ("B", "KB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.4g} GB"
