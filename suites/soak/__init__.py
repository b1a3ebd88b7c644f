"""What only load that lasts brings out: rounds of it, and what nodes count when everything is over."""
