"""What the devices of a node compute and copy, timed and compared.

Every file is sent to the nodes.
"""
