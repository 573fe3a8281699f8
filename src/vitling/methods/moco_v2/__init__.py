"""MoCo v2 (Chen et al. 2020)."""
