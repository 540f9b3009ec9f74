"""What runs operators, as far as it needs no thread.

The life of an operator as a table is in `sbon.execution.life`.
"""
