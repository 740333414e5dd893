"""Whether this machine computes what it should: its devices, versions, and every attention backend against float64."""
