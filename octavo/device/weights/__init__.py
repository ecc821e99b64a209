"""Checkpoints -> weights, tensor by tensor."""
