"""Training of small models: losses, optimizer, one compiled step, and runs that can be interrupted anywhere."""
