"""Facts in, derived figures out: statistics, roofline, ratios, comparison with the paper. Pure, without torch.

Nothing is imported here: the runner's stopping rule needs `statistics` alone and should not pay for the rest.
"""
