"""Did it get slower? Comparisons of runs, the gate, measurements against another revision, histories.

`compare` starts from recorded facts; `gate` and `regress` measure two builds in turns. All of them end in one
`verdicts.Comparison`, which `regression.report` renders.
"""
