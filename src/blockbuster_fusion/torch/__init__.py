"""PyTorch models: captured, cut into parts, compiled and run.

capture/            the captured graph: simplified, and analysed node by node
slices/             slices moved up, and concatenations down
table/              the operator table: what each ATen operator computes
to_array_program.py a part of the graph as an array program
part_choices.py     the programs of parts, and the choices that may run them
compile_parts.py    the parts of a graph, compiled, with the caller's options.py
groups.py           operators that are run together: fused, joined, or left to PyTorch
plan/               the plan of a graph while it runs: steps, recorded calls, CUDA graphs
compile_graph.py    all of this in order: from a graph to its plan
backend.py, export.py, model.py, explain/    the functions that users call
"""
