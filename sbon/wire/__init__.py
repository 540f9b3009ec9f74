"""Messages between agents over their connections: acknowledgement of data, deployment, migration, replication.

Every message is a typed struct in MessagePack; decoding is the validation. Only the batches of links have another form
(`sbon.links.frames`). Sealing, framing, request numbers and time-outs belong to the connection (`sbon.framing`, `sbon.peers.peers`)
and are handled elsewhere. Datagrams have messages of their own (`sbon.membership.messages`).

Each module has the messages of one subject; `sbon.wire.messages` lists all of them, and encodes and decodes them.
"""
