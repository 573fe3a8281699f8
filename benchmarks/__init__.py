"""Measurements, and the pages that show them."""
