"""The built-in models, and configurations of published ones."""
