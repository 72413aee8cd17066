"""Finds out whether an implementation got slower.

`compare` compares recorded runs. `regress` measures a revision or an interpreter beside the current one, in interleaved
pairs of processes. Both make a `verdicts.Comparison`, which `document` shows. `history` follows figures over many
recorded runs.
"""
