"""The fusion algorithm and its trace."""
