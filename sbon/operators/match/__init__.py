"""Matches row patterns: MATCH_RECOGNIZE."""
