"""From TOML to a hardware file: every fault at once, with file and line.

What a loaded file answers is one folder up.
"""
