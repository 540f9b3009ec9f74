"""Links between operators: numbering, acknowledgement, credit, resend. Machines without I/O.

An acknowledgement means that the receiving operator has *processed* the batch: its effects are in the operator's state, in its output
links, or in the sink. It is *safe* when it is in a state or a sink, there or further on (`sbon.links.unsafe`); until then its sender keeps
it. So whatever a sender may drop is nowhere in flight, and whatever is in flight can be sent again. It follows:

* After a reconnect the sender sends everything unacknowledged again, and the receiver drops what it has seen by its number.
* A migrating operator transfers its state, the number of the last batch that it processed on each input, and the output that is not
  acknowledged. Batches still in its input queues are dropped: the senders have them and send them to the new host.
* A batch that cannot be encoded would block all later ones: it is sent without its rows, with its number and watermark
  (`LinkSender.leave_out`). The rows are lost, and counted.
* Credit needs no messages of its own: a slow operator acknowledges late, its senders run out of credit, their operators stop being
  scheduled, and so on up to the sources.

Invariants: a receiver takes the batches of a link exactly once and in the order of their numbers, for any loss, repetition and
reordering below; a sender holds at most `window_batches` batches and, beyond one batch, `window_bytes` bytes in memory. With a budget
(`spill_bytes`) it stores more on disk and forwards it later (`sbon.links.backlog`); what is under way never exceeds the window all the
same.
"""
