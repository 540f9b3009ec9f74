"""Answers to questions about plans: how many nodes, which rates, what would have to change. `sbon plan` asks them."""
