"""The commands that run models, one file each; jaxsink/cli/main.py puts them together."""
