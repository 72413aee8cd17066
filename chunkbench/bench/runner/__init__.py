"""Runs an experiment: worker processes, memory groups, time limits, crash attribution, rounds, checks."""
