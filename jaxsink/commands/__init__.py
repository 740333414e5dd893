"""The commands that run models, one file each; jaxsink/cli.py puts them together."""
