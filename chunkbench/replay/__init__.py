"""Replays requests through a cache manager and a scheduler on a virtual clock. Nothing here is measured."""
