"""The source texts: their printed tables as data, and their claims, each with a function that judges it."""
