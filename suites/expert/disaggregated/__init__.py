"""Attention ranks and expert ranks apart: M-to-N dispatch and N-to-M combine.

Every file is sent to the nodes.
"""
