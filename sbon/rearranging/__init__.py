"""Moves running operators to better hosts: reviews, questions to candidates, multicasts, and the departure of an agent."""
