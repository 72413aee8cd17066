"""The worker process: it holds inputs and sessions and carries out the runner's requests."""
