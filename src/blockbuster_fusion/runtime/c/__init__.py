"""Kernels in C: compiled, loaded and called."""
