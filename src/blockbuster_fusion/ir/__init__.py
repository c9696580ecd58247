"""The block program: axes, types, operators, graphs, and their text and listing."""
