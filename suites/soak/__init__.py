"""What load that lasts does to a node: nothing that it counts as an error, when everything else is over."""
