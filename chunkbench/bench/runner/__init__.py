"""Runs an experiment: worker processes, memory groups, time limits, crashes, rounds, checks."""
