"""Measuring: clocks, cold and warm caches, timed loops, probes of the machine's peaks."""
