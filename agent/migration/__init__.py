"""Carries out what the machines of `sbon.migration` decide: operators that leave, arrive, and keep still beside one that moves."""
