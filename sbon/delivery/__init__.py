"""Carries batches over links, to operators here and on other hosts: numbers, credit, acknowledgements, spilling, news of links' ends."""
