"""What runs operators: the life of an operator as a table (`sbon.execution.life`)."""
