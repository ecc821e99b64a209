"""Leaf helpers; no torch, no other octavo room."""
