"""What is asked of every node by itself: inventory, compute, memory, links inside."""
