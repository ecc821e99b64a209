"""Attention backends: the plan of a step and the kernels that follow it."""
