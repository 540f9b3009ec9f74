"""Evaluation of dealers: windows over many instances in virtual time."""
