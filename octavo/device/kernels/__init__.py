"""One operation a file: the torch twin, which is its specification, and its fast halves beside it."""
