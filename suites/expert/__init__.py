"""Expert parallelism: dispatch, combine, routing, and experts on nodes of their own.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
