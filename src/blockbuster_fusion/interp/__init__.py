"""The oracle: block programs and array programs run on NumPy arrays, block by block or whole."""
