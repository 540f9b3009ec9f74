"""What the home of a query does for it, as state machines: deployment, health, lost rows."""
