"""A hardware file from the journals of healthy runs.

Reads `reports.journal`; writes TOML.
"""
