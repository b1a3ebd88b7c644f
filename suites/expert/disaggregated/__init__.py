"""Attention ranks and expert ranks apart: M-to-N dispatch and N-to-M combine."""
