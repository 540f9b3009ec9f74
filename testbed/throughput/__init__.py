"""Evaluation of the highest rates that queries sustain (WhiteWater): searches for order and placement, and the rates of real agents."""
