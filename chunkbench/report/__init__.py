"""Reports of runs: `build` describes a run, `formats` prints it, `files` writes it into the run directory."""
