"""Weights on disk, in buckets and on the hub: reading, writing, describing."""
