"""The commands, one module each: flags, one call into the library, and the printing of its result.

Importing them does not import torch; a command's function imports what it needs when it is called.
"""
