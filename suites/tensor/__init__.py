"""Tensor and sequence parallelism, own layers and DTensor.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
