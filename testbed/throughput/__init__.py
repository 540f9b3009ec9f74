"""Evaluation of the highest rates that queries carry (WhiteWater): searches for order and placement, and the rates of real agents."""
