"""A rank as the core sees it."""
