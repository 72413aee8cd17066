"""Computes figures from recorded results: statistics, roofline, ratios, expectations.

The functions are pure and need no torch. This file imports nothing, so that the import of `statistics` alone stays
fast.
"""
