"""State machines with which the home of a query supervises it: deployment, health, lost rows, recovery, ownership."""
