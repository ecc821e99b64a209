"""Logits to tokens, in stages."""
