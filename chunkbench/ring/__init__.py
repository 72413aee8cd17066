"""Attention over several ranks: K and V of one context are split, and travel, or partial results do.

RingAttention (arXiv 2310.01889), striped attention (2311.09431), zigzag, tree attention (2408.04093). A rank is a
process; `launch` starts ranks and gives them jobs.
"""
