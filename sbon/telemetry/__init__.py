"""Telemetry of agents as typed tables, shared by agents and the analysis. No I/O: `agent` has the files and brokers."""
