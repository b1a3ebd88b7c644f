"""Techniques together on a device mesh, and where each axis lies.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
