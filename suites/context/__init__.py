"""Context parallelism: ring, zig-zag, all-gather and Ulysses attention.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
