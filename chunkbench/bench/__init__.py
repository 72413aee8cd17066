"""The bench: experiments, runs and their workers, measuring, the run directory, the machine, derived figures."""
