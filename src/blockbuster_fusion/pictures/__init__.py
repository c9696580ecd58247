"""Pictures of block programs: maps as nested boxes, lists in global memory as coloured lines."""

from blockbuster_fusion.pictures.draw import draw, draw_side_by_side, draw_step

__all__ = ["draw", "draw_side_by_side", "draw_step"]
