"""Every collective: exact data, bandwidth, latency, and the transport that carried it."""
