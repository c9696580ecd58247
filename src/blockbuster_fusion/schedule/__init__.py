"""Schedules of loop nests: their options and defaults."""
