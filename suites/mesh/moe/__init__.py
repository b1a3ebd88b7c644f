"""The five axes of a mixture of experts on one mesh.

Every file is sent to the nodes.
"""
