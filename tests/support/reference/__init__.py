"""Slow implementations in float64 NumPy, written from the description of the originals and not from jaxsink's code."""
