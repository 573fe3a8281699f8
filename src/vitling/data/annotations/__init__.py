"""Annotations: boxes, instance masks and semantic masks beside the images, in the formats of common tools."""
