"""A run is a Python function."""
