"""TLS for connectors that listen or connect: reads certificates and keys from files, and reads them again when the files change."""

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
    """Files for one end of TLS connections: its certificate (the chain, PEM) with the key (PEM, without a passphrase), and trusted
    certificates.

    Parameters
    ----------
    what : the connector's name in messages, such as `source trades`
    pair : certificate and key; None for none
    trusted : certificates of the authorities that vouch for the peer (PEM); None for the system's
    server_name : name that the peer's certificate must have, for the end that connects; None for the end that listens
    """

    def __init__(
        self, what: str, reach: Reach, pair: tuple[Path, Path] | None, trusted: Path | None = None, server_name: str | None = None
    ) -> None:
        self.problem = ""
        """Reason why changed files are not in use; empty if the present files are."""
        self.server_name = server_name
        self._what = what
        self._pair = pair
        self._trusted = trusted
        self._reach = reach
        self._pem: tuple[bytes, bytes] | None = None
        self._context: ssl.SSLContext | None = None

    @classmethod
    def of_options(cls, what: str, options: Options, reach: Reach) -> TlsFiles | None:
        """Returns the files of an end that listens, not read yet; None if the options name none.

        Raises
        ------
        ConnectorError
            One of `tls_certificate` and `tls_key` is given without the other.
        """
        pair = _pair(what, options, reach)
        return None if pair is None else cls(what, reach, pair)

    @classmethod
    def of_peer(cls, what: str, options: Options, reach: Reach, host: str) -> TlsFiles | None:
        """Returns the files of an end that connects to a host, not read yet; None for plain text.

        Raises
        ------
        ConnectorError
            An option needs `tls = 'true'`, or one of `tls_certificate` and `tls_key` is given without the other.
        """
        if not options.flag("tls", False):
            for option in ("ca_file", "server_name", "tls_certificate", "tls_key"):
                if options.given(option):
                    raise options.refuse(option, options.text(option, ""), "tls = 'true' as well")
            return None
        trusted = options.optional("ca_file")
        name = options.text("server_name", host)
        return cls(what, reach, _pair(what, options, reach), None if trusted is None else path_of(what, trusted, reach), name)

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
        trusted = b"" if self._trusted is None else self._read(self._trusted, "ca_file", secret=False)
        pair = b""
        if self._pair is not None:
            certificate, key = self._pair
            pair = self._read(certificate, "tls_certificate", secret=False) + b"\n" + self._read(key, "tls_key", secret=True)
        if (pair, trusted) != self._pem:
            self._context = self._loaded(pair, trusted)
            self._pem = pair, trusted

    def refresh(self) -> None:
        """Reads the files again if they have changed. If they are unusable, the previous ones stay in use, and `problem` says why."""
        try:
            self.read()
        except ConnectorError as problem:
            self.problem = f"the previous certificate stays in use: {problem}"
        else:
            self.problem = ""

    def _loaded(self, pair: bytes, trusted: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self.server_name is None else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._trusted is not None:
            try:
                context.load_verify_locations(cadata=trusted.decode("ascii"))
            except (ssl.SSLError, ValueError) as problem:
                raise ConnectorError(f"{self._what}: {self._trusted} has no certificates in PEM", option="ca_file") from problem
        elif self.server_name is not None:
            context.load_default_certs()
        if self._pair is not None:
            self._load_pair(context, self._pair, pair)
        return context

    def _load_pair(self, context: ssl.SSLContext, paths: tuple[Path, Path], pem: bytes) -> None:
        # The ssl module takes paths only. Nobody else can access this file, so the checked bytes are the ones that are loaded.
        file = os.memfd_create("tls")
        try:
            os.write(file, pem)
            context.load_cert_chain(f"/proc/self/fd/{file}", password="")
        except (ssl.SSLError, OSError) as problem:
            raise ConnectorError(
                f"{self._what}: {paths[0]} and {paths[1]} are no certificate with its key (PEM, without a passphrase): {problem}",
                option="tls_certificate",
            ) from problem
        finally:
            os.close(file)

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


def _pair(what: str, options: Options, reach: Reach) -> tuple[Path, Path] | None:
    certificate, key = options.optional("tls_certificate"), options.optional("tls_key")
    if certificate is None and key is None:
        return None
    if not certificate or not key:
        missing = "tls_key" if certificate else "tls_certificate"
        raise ConnectorError(f"{what}: TLS needs option {missing}, too: write {missing} = 'path' (PEM)", option=missing)
    return path_of(what, certificate, reach), path_of(what, key, reach)
