"""DenseCL (Wang et al., CVPR 2021)."""
