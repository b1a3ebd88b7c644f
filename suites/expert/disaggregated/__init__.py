"""Attention and experts on separate ranks: M-to-N dispatch and N-to-M combine."""
