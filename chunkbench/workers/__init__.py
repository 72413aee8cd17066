"""The child's side of measuring: a process that holds inputs and sessions, and does what the runner asks of it."""
