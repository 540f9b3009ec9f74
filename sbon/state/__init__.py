"""States of keys that may exceed memory: often used states in arrays, the others in sorted runs on disk (docs/state.md)."""
