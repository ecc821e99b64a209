"""Persistent rows and the tensors of one step."""
