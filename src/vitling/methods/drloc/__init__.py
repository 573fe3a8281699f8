"""DRLoc (Liu et al., NeurIPS 2021), an auxiliary loss."""
