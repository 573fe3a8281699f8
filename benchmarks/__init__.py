"""Measurements, which are run as files (`python benchmarks/step.py`), and `pages`, the generators of docs."""
