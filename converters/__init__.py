"""PyTorch and GGUF weights into Flax modules: one table per family, one strict streaming engine."""
