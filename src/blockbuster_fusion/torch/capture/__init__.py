"""Captured graphs: read, simplified and measured."""
