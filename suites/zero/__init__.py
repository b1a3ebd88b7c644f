"""Data parallelism and the stages of ZeRO.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
