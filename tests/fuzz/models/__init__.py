"""Random PyTorch models: made, compiled, and judged against eager and float64."""
