"""What only load that lasts brings out: rounds of every family's load, and what nodes count when all is over."""
