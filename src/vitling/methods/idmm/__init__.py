"""IDMM (Cao et al., ECCV 2022)."""
