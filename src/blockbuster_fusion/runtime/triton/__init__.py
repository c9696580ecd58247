"""Kernels in Triton: compiled and launched."""
