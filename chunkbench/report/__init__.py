"""Reports of runs. `build` makes a report, `formats` turns it into text, `files` writes it into the run directory."""
