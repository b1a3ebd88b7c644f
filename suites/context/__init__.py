"""Context parallelism: ring, zig-zag, all-gather and Ulysses attention."""
