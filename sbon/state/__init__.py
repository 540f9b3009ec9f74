"""States of keys beyond memory: hot ones in arrays, cold ones in sorted runs on disk (docs/state.md)."""
