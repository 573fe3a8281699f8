"""Reads what runs and studies left in files, and writes what a person reads. Imports no other part, and no torch."""
