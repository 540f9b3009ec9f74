"""Forms in which rows and messages come from outside and leave: bytes to values and back, without sockets and files."""
