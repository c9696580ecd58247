"""The runtime: source text is compiled and cached, kernels are launched on arrays."""
