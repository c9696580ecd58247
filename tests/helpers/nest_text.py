"""Nests written as text and read back."""

from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.nest.text import nest_from_text, nest_to_text
from blockbuster_fusion.nest.verify import verify_nest


def read_back(nest: Nest) -> Nest:
    """The nest that its text describes; it has the same text and the same listing."""
    text = nest_to_text(nest)
    made = nest_from_text(text)
    verify_nest(made)
    assert nest_to_text(made) == text
    assert show_nest(made) == show_nest(nest)
    return made
