"""Data only: one YAML file per table or figure."""
