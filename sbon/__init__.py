"""sbon: a decentralised, network-aware overlay for continuous SQL. This package is the library: values in, values out, no I/O."""

__version__ = "0.1.0"
