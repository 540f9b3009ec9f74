"""Searches for good configurations: moves, budgets and strategies behind one interface, and placements for latency."""
