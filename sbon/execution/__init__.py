"""The parts of running operators that need no thread.

The table of an operator's life is in `sbon.execution.life`.
"""
