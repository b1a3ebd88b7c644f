"""What only load that lasts brings out: rounds of every family's load, and what a node counts when all is over."""
