"""What is accepted: one folder per technique.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
