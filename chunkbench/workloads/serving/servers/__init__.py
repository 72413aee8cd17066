"""The systems that are measured: one file for each server, a row for each variant."""
