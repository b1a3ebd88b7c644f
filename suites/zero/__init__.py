"""Data parallelism and the stages of ZeRO."""
