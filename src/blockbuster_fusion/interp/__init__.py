"""The reference interpreter: block programs on NumPy arrays, and what they cost to run."""

from blockbuster_fusion.interp.executors import Executor, register_executor
from blockbuster_fusion.interp.interpreter import Outputs, interpret
from blockbuster_fusion.interp.meter import meter
from blockbuster_fusion.interp.traffic import Traffic

__all__ = ["Executor", "Outputs", "Traffic", "interpret", "meter", "register_executor"]
