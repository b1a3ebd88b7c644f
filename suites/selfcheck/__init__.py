"""The faults that a run plants to prove that it finds them.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
