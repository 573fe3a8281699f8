"""Dense tasks: detection, instance and semantic segmentation on a trained backbone."""
