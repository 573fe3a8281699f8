"""SupCon (Khosla et al., NeurIPS 2020)."""
