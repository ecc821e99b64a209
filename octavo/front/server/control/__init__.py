"""Routes about the server itself."""
