"""Pivots: sums that cancel are taken of small numbers."""
