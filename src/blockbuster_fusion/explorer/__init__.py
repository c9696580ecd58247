"""The explorer: a page that shows every step from a block program to its kernels."""
