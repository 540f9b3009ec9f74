"""The parts that sources and sinks share and that need no I/O: interfaces, watermarks, batches of rows, queues of rows to send."""
