"""Captured graphs: simplified, and analysed."""
