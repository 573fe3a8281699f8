"""LeJEPA (Balestriero and LeCun, arXiv 2511.08544)."""
