"""One module per command: parse, call one function, print, exit code."""
