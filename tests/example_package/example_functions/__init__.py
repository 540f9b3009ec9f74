"""Example functions over batches for sbon; see README.md."""
