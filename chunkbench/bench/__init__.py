"""Everything about a run: experiments, workers, measuring, the run directory, the machine, derived figures."""
