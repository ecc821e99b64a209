"""Formats: one file a family, data only."""
