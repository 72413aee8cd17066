"""Did it get slower? Comparisons of runs, the gate, other revisions measured beside this one, histories.

A comparison starts from facts (`compare`) or measures two builds in turns (`gate`, `regress`). Both end in one
`verdicts.Comparison`, which `regression.report` renders.
"""
