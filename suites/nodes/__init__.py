"""What is asked of every node by itself: inventory, compute, memory, links inside.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
