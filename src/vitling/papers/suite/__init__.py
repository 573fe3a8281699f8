"""Frozen networks on the datasets of the papers."""
