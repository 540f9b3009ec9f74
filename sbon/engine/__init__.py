"""The scheduler of the built-in engine: which operator runs next, when sources are polled, and what a finished task means."""
