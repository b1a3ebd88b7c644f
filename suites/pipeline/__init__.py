"""Pipeline parallelism: schedules, their bubbles, and the edges between stages.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
