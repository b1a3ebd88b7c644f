"""Ten minutes on one GPU: what reading the code cannot show. `make gpu`."""
