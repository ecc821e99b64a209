"""Schemes: what a linear's weights are and how it multiplies with them."""
