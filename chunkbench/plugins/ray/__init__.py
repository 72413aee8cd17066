"""Runs on the machines of a Ray cluster: which of them can measure, and an executor that measures on them."""
