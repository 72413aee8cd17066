"""The systems that are measured: a file for each server, a row for each variant."""
