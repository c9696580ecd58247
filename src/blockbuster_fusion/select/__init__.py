"""Selection: which operators become one kernel."""
