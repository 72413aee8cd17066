"""Computes derived figures from facts: statistics, roofline, ratios, expectations. Pure functions, without torch.

This module imports nothing: the runner's stopping rule needs only `statistics` and must not load the rest.
"""
