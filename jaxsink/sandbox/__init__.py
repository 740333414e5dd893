"""Programs that models write, run where they can do no harm."""
