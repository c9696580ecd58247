"""The plan of a graph: made by planner.py, and run by the other modules.

A plan is a list of steps over numbered slots (steps.py). What a call does is assembled from the
shapes and strides of its inputs (assembling.py), as a tape (tape.py, c_tape.py, gpu_tape.py).
"""
