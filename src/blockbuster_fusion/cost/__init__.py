"""The cost of block programs: bytes, operations and local memory."""
