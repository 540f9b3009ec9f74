"""Makes the pages of `docs/reference/` from the code, so that they say what the code does: `make reference`."""
