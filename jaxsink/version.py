"""The version, readable without importing JAX."""

__version__ = "0.2.0"
"""Of this package, as `jaxsink --version` prints it."""
