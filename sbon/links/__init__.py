"""Links between operators: numbering, acknowledgement, credit, resend. Machines without I/O.

An acknowledgement means that the receiving operator has *processed* the batch: the batch's effects are in the operator's state, in its
output links, or in the sink. A batch is *safe* when its effects are in the state of this or a later operator, or in a sink
(`sbon.links.unsafe`); its sender keeps it until then. So a sender drops no batch that is in flight, and can resend every batch that is.
Therefore:

* After a reconnect the sender sends all unacknowledged batches again, and the receiver drops those that it has seen, by their numbers.
* A migrating operator transfers its state, the number of the last batch that it processed on each input, and the output that is not
  acknowledged. Batches still in its input queues are dropped: the senders have them and send them to the new host.
* A batch that cannot be encoded would block all later ones. It is sent with its number and watermark, but without its rows
  (`LinkSender.leave_out`). The rows are lost, and counted.
* Credit needs no messages of its own. A slow operator acknowledges late, its senders run out of credit, their operators are no longer
  scheduled, and so on up to the sources.

Invariants: a receiver takes the batches of a link exactly once and in the order of their numbers, whatever messages the network loses,
repeats or reorders. A sender holds at most `window_batches` batches and, beyond one batch, `window_bytes` bytes in memory. With a disk
budget (`spill_bytes`) it stores more batches on disk and sends them later (`sbon.links.backlog`); the batches in flight still never exceed
the window.
"""
