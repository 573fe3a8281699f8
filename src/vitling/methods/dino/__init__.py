"""DINO (Caron et al., ICCV 2021)."""
