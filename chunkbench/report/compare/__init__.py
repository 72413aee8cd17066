"""Did an implementation get slower? Comparisons of runs, measurements beside another revision or interpreter,
histories.

`compare` starts from recorded facts; `regress` measures two sides in interleaved pairs of processes. Both give a
`verdicts.Comparison`, which `document` renders.
"""
