"""The verbs. Each is one call into the library; torch is imported only when there is work."""
