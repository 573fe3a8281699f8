"""The verbs, one module each: flags, one call into the library, and the printing of its result.

Importing them imports no torch; a verb's function imports what it needs when it is called.
"""
