"""Tensor and sequence parallelism, own layers and DTensor."""
