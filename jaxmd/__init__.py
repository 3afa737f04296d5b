"""Multiple-double arithmetic and matrix products for JAX."""
