"""`vllm bench serve`, run by the Python of an environment with vLLM.

The console program of vLLM's community build for CPUs fails before it reads its arguments; what it would call works.
"""

from __future__ import annotations

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
