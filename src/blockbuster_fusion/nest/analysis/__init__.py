"""Analyses of loop nests that passes ask."""
