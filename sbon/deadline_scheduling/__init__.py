"""Which rows to work on, and in which order, when not all can be in time: policies behind one interface, and what they cannot exceed."""
