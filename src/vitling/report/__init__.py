"""Tables and charts from the files of runs and studies. Imports no other package of vitling, and no torch."""
