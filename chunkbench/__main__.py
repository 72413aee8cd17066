"""`python -m chunkbench` runs the command `chunkbench`."""

from chunkbench.cli.main import main

main()
