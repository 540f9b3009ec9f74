"""Evaluation of plans for latency bounds, and of scheduling by deadline."""
