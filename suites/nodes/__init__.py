"""Checks of every node by itself: inventory, compute, memory, links inside."""
