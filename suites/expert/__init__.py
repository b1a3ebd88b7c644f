"""Expert parallelism: dispatch, combine, routing, and experts on nodes of their own."""
