"""Supervised classification as pre-training: the baseline of IDMM's Table 6."""
