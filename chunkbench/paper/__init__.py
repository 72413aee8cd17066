"""What the source texts print and claim: their tables as data, and every claim with a function that judges it."""
