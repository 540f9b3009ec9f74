"""Nexmark: an online auction as three streams (persons, auctions, bids), and the benchmark's queries over them.

The benchmark is that of Tucker, Tufte, Papadimos and Maier (NEXMark: a benchmark for queries over data streams, 2002) in the form that
later stream processors use. `events` makes the rows, `source` brings them into an agent as the connector `nexmark`, `queries` has the
queries in sbon's SQL, `reference` computes their answers independently, and `bench` measures.
"""
