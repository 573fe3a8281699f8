"""The version, where every package can import it from."""

__version__ = "0.1.0"
