"""Every collective: exact data, bandwidth, latency, and the transport that carried it.

`test_*.py` is controller code; every other file is sent to the nodes.
"""
