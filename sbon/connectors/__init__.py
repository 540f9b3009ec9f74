"""What sources and sinks have in common and needs no I/O: their interfaces, watermarks, batches of rows, queues of what is to be sent."""
