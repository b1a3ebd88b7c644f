"""From TOML to a hardware file: every fault at once, with file and line.

The lookups in a loaded file are one folder up.
"""
