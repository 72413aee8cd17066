"""`python -m chunkbench` is the command `chunkbench`."""

from chunkbench.cli.main import main

main()
