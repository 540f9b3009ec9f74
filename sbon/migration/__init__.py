"""Moves a running operator to another host: settings, and one machine for each host that takes part."""
