"""Reads files that hold a secret of a connector, such as a token, so that statements, logs and listings only show the file's path."""

from __future__ import annotations

from pathlib import Path

from sbon.errors import ConnectorError
from sbon.options import Options
from sbon.reach import Reach
from sbon_agent.connectors.opening import open_to_read, path_of

SECRET_BYTES_MAX = 4096


class SecretFile:
    """One line of printable ASCII characters in a file; surrounding white space is ignored.

    Parameters
    ----------
    option : name of the option with the path, for messages
    """

    def __init__(self, what: str, option: str, path: Path, reach: Reach) -> None:
        self._what = what
        self._option = option
        self._path = path
        self._reach = reach
        self.value = b""
        """The secret, after `read`."""

    @classmethod
    def of_option(cls, what: str, options: Options, option: str, reach: Reach) -> SecretFile | None:
        """Returns the file that an option names, not read yet; None if the option is not given."""
        given = options.optional(option)
        if given is None:
            return None
        if not given:
            raise options.refuse(option, given, "the path of a file")
        return cls(what, option, path_of(what, given, reach), reach)

    def read(self) -> None:
        """Reads the secret. Blocks if the file system does not answer.

        Raises
        ------
        ConnectorError
            The file cannot be read, may not be read, or holds no secret. The message does not quote its contents.
        """
        with open_to_read(self._what, self._path, self._reach) as file:
            data = file.read(SECRET_BYTES_MAX + 1) or b""
        value = data.strip()
        if not value or len(data) > SECRET_BYTES_MAX or not all(33 <= octet <= 126 for octet in value):
            raise ConnectorError(
                f"{self._what}: {self._path} has no secret in it, expected one line of up to {SECRET_BYTES_MAX} printable characters "
                "without blanks",
                option=self._option,
            )
        self.value = value
