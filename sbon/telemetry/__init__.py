"""Telemetry of agents as typed tables, shared by agents and the analysis. Values in, values out: `agent` has the files and brokers."""
