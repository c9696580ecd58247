"""The plan of a graph: made by planner.py, and run by the other modules.

A plan is a list of steps over numbered slots (steps.py). Its first call is recorded (recording.py),
and later calls replay the recording on a tape (tape.py, c_tape.py) or as a CUDA graph.
"""
