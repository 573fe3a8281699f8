"""What the training commands do."""
