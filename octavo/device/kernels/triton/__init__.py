"""The Triton halves of the kernels beside them; only these files import Triton."""
