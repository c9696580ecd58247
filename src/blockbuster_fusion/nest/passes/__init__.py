"""Passes over loop nests, one to a file."""
