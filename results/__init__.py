"""Data only: the paper's numbers (`paper/`) and recorded runs (`recorded/`)."""
