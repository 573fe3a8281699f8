"""SimCLR (Chen et al., ICML 2020)."""
