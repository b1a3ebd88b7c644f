"""What only lasting load brings out: rounds of load, and the nodes' counters when everything is over."""
