"""The commands: one module each, which parses options, calls one function, prints, and sets the exit code."""
