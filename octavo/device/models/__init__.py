"""One architecture a file, built from the Kit."""
