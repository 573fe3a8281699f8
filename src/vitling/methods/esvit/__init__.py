"""EsViT (Li et al., ICLR 2022)."""
