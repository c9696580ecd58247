"""The listing as a picture: maps are nested boxes, lists in global memory are coloured lines."""

from blockbuster_fusion.pictures.draw import draw, draw_side_by_side, draw_step

__all__ = ["draw", "draw_side_by_side", "draw_step"]
