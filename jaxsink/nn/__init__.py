"""The transformer: its configuration, its layers and attention, and how programs that run it are compiled."""
