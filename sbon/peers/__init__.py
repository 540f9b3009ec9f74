"""Connections to other agents, over the host's streams: handshakes, messages, requests and their replies."""
