"""Evaluation of dealers, which assign windows to instances, in virtual time."""
