"""The work of the training commands, from opening a run to its result."""
