"""How likely a model finds a given answer."""
