"""What the devices of a node compute and copy, timed and compared."""
