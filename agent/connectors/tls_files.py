"""TLS for connectors that listen: reads certificate and key from files, and again when the files change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from sbon.errors import ConnectorError
from sbon.options import Options
from sbon.reach import Reach
from sbon_agent.connectors.opening import open_to_read, path_of
from sbon_agent.mqtt import open_to_others

FILE_BYTES_MAX = 1 << 20


class TlsFiles:
    """The options `tls_certificate` (the chain, PEM) and `tls_key` (PEM, without a passphrase).

    Parameters
    ----------
    what : the connector's name in messages, such as `source trades`
    """

    def __init__(self, what: str, certificate: Path, key: Path, reach: Reach) -> None:
        self.problem = ""
        """Reason why changed files are not in use; empty if the present files are."""
        self._what = what
        self._certificate = certificate
        self._key = key
        self._reach = reach
        self._pem = b""
        self._context: ssl.SSLContext | None = None

    @classmethod
    def of_options(cls, what: str, options: Options, reach: Reach) -> TlsFiles | None:
        """Returns the files that the options name, not read yet; None if they are not given.

        Raises
        ------
        ConnectorError
            One of them is given without the other.
        """
        certificate, key = options.optional("tls_certificate"), options.optional("tls_key")
        if certificate is None and key is None:
            return None
        if not certificate or not key:
            missing = "tls_key" if certificate else "tls_certificate"
            raise ConnectorError(f"{what}: TLS needs option {missing}, too: write {missing} = 'path' (PEM)", option=missing)
        return cls(what, path_of(what, certificate, reach), path_of(what, key, reach), reach)

    @property
    def context(self) -> ssl.SSLContext:
        """Returns the TLS context for new connections; call it after `read`."""
        assert self._context is not None
        return self._context

    def read(self) -> None:
        """Reads the files. Blocks if the file system does not answer.

        Raises
        ------
        ConnectorError
            The files cannot be read, may not be read, hold no certificate with its key, or others can read the key.
        """
        pem = self._read(self._certificate, "tls_certificate", secret=False) + b"\n" + self._read(self._key, "tls_key", secret=True)
        if pem != self._pem:
            self._context = self._loaded(pem)
            self._pem = pem

    def refresh(self) -> None:
        """Reads the files again if they have changed. If they are unusable, the previous ones stay in use, and `problem` says why."""
        try:
            self.read()
        except ConnectorError as problem:
            self.problem = f"the former certificate stays in use: {problem}"
        else:
            self.problem = ""

    def _loaded(self, pem: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The ssl module takes paths only. Nobody else can access this file, so what was checked is what is loaded.
        file = os.memfd_create("tls")
        try:
            os.write(file, pem)
            context.load_cert_chain(f"/proc/self/fd/{file}", password="")
        except (ssl.SSLError, OSError) as problem:
            raise ConnectorError(
                f"{self._what}: {self._certificate} and {self._key} are no certificate with its key (PEM, without a passphrase): {problem}",
                option="tls_certificate",
            ) from problem
        finally:
            os.close(file)
        return context

    def _read(self, path: Path, option: str, *, secret: bool) -> bytes:
        with open_to_read(self._what, path, self._reach) as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if secret and open_to_others(mode):
                told = f"{self._what}: others can read the key in {path} (mode {mode:04o}): write chmod 600 {path}"
                raise ConnectorError(told, option=option)
            data = file.read(FILE_BYTES_MAX + 1) or b""
        if len(data) > FILE_BYTES_MAX:
            raise ConnectorError(f"{self._what}: {path} is larger than {FILE_BYTES_MAX} bytes", option=option)
        return data
