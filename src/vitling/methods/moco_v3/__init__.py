"""MoCo v3 (Chen, Xie and He, ICCV 2021)."""
