"""The papers' tables and figures, the code that runs them, and the papers' datasets."""
