"""Carries batches over links to operators on this host and on others: numbers, credit, acknowledgements, spilling, news of links' ends."""
