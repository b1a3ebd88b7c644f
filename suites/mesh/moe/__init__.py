"""The five axes of a mixture of experts on one mesh."""
