"""Transposing and broadcasting of tiles."""

from collections.abc import Iterable, Sequence

from blockbuster_fusion.nest.nest import Span


def position(spans: Sequence[Span], span: Span) -> str:
    """The index that broadcasts a vector along one axis over the others."""
    if len(spans) == 1:
        return ""
    return _index(":" if other == span else "None" for other in spans)


def aligned(text: str, spans: Sequence[Span], onto: Sequence[Span]) -> str:
    """A tile with the axes `spans`, in the order of `onto`, ready to be broadcast to it."""
    if not spans or tuple(spans) == tuple(onto):
        return text
    kept = [span for span in onto if span in spans]
    if kept != list(spans):
        if len(spans) == 2:
            text = f"tl.trans({text})"
        else:
            text = f"tl.permute({text}, {tuple(spans.index(s) for s in kept)})"
    if len(kept) == len(onto):
        return text
    return text + _index(":" if span in spans else "None" for span in onto)


def _index(parts: Iterable[str]) -> str:
    return f"[{', '.join(parts)}]"
