"""Plans of PyTorch models: how they are made, and how a model runs by one."""
