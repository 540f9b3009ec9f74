"""Formats of rows and messages outside sbon: bytes to values and back, without sockets and files."""
