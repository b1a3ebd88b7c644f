"""Context parallelism: one sequence over many ranks."""
