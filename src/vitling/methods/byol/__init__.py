"""BYOL (Grill et al., NeurIPS 2020)."""
