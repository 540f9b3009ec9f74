"""Evaluation of worst-case latency prediction (Mace): the paper's figures, and placement for latency compared with other searches."""
