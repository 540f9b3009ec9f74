"""State machines by which the home of a query looks after it: deployment, health, lost rows."""
