"""Messages between agents over their connections: acknowledgement of data, deployment, migration, replication.

Every message is a typed struct in MessagePack, and decoding validates it. Only the batches of links have another form
(`sbon.links.frames`). The connection handles sealing, framing, request numbers and time-outs (`sbon.framing`, `sbon.peers.peers`).
Datagrams have messages of their own (`sbon.membership.messages`).

Each module has the messages of one subject; `sbon.wire.messages` lists all of them, and encodes and decodes them.
"""
