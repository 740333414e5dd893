"""Pallas kernels: attention with received scores, without an S x S map in memory. See docs/kernel.md."""
