"""Finds out whether an implementation got slower: compares runs, measures it beside another revision or interpreter,
shows histories.

`compare` starts from recorded facts; `regress` measures two sides in interleaved pairs of processes. Both give a
`verdicts.Comparison`, which `document` renders.
"""
