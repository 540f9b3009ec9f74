"""What agents say to each other over their connections: acknowledgement of data, deployment, migration, replication.

Every message is a typed struct in MessagePack; decoding is the validation. Only the batches of links travel otherwise
(`sbon.link_frames`). Sealing, framing, request numbers and time-outs belong to the connection (`sbon.framing`, `sbon_agent.network.peers`)
and are not seen here. Datagrams have messages of their own (`sbon.membership.messages`).

Each module has the messages of one subject; `sbon.wire.messages` knows all of them, and their bytes.
"""
