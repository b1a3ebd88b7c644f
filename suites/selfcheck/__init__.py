"""The faults that a run plants to prove that it finds them."""
