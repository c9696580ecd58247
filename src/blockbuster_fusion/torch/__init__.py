"""PyTorch models: captured, cut into parts, expressed over axes, planned and run."""
