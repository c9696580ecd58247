"""Numerical safety: fused programs that are as exact as careful unfused ones."""
