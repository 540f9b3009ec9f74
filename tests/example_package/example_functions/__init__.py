"""Functions over batches for sbon, as an example; see README.md."""
