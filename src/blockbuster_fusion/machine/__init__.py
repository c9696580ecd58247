"""Machines as data: processors, memories, rates and costs that schedules are chosen by."""
