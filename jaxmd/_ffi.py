"""Loading of the compiled handlers and their registration with XLA."""
