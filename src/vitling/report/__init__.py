"""The report of runs: one HTML page from plain data. Imports no other package of vitling, and no torch."""
