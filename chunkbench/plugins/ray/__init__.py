"""Runs on the machines of a Ray cluster: finds the machines that can measure, and measures on them."""
