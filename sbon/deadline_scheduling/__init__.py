"""Policies that choose which rows to process, and in which order, when not all can be in time; and an upper bound for all policies."""
