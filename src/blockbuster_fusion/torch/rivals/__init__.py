"""Library operators as rivals of kernels: which of them runs each part of a model."""
