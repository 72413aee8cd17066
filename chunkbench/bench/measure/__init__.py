"""Clocks, cache control, noise guards and peak probes."""
