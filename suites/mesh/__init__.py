"""Techniques together on a device mesh, and where each axis lies."""
