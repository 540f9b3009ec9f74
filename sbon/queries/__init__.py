"""The queries that an agent has taken: from a statement to running operators, their homes, and their restart with the agent."""
