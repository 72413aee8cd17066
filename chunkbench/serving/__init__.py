"""Serving, end to end: an engine, servers and the load. This room is what `kind: serving` measures."""
