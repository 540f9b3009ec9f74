"""Makes the pages of `docs/reference/` from the code, so that they match it: `make reference`."""
