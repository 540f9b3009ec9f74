"""The queries that an agent has taken: from a statement to running operators, their homes, and what happens after a restart."""
