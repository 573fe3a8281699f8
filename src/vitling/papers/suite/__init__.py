"""Frozen networks on the data sets of the papers."""
