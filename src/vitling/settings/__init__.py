"""Every setting of a run, resolved in one place."""
