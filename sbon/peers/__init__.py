"""Connections to other agents, over streams that the machine opens: handshakes, messages, requests and their replies."""
