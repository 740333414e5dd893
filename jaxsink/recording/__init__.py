"""What is kept of a run: taps in the network, recorders that read them, reductions of what they read."""
