"""One step of this rank."""
