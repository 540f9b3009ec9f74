"""Evaluation of worst-case latency prediction (Mace): its own figures, and placement for latency against other searches."""
