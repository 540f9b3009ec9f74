"""MQTT brokers (mosquitto) that tests start themselves."""

import datetime
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from sbon_testbed.processes.local import free_ports
from tests.processes import wait_until

MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
needs_broker = pytest.mark.skipif(MOSQUITTO is None, reason="no mosquitto on this machine")
STARTED: list[subprocess.Popen[bytes]] = []


def end_all() -> None:
    """Kills all brokers that still run, so a failing test leaves no process behind."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.wait()


class Broker:
    """A mosquitto on loopback that one test uses."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.directory = directory
        directory.mkdir()
        [self.port] = free_ports(1)  # a port that the kernel gives to nobody else while the broker is down
        self.config = directory / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "persistence true", f"persistence_location {directory}/", *settings]
        self.config.write_text("\n".join(lines) + "\n")
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        if os.getuid() == 0:  # mosquitto gives up root, and must still reach its files
            shutil.chown(self.directory, "mosquitto", "mosquitto")
            for parent in (self.directory, *self.directory.parents):
                if parent.stat().st_uid == 0 and parent != Path("/") and not parent.stat().st_mode & 0o001:
                    parent.chmod(parent.stat().st_mode | 0o011)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([MOSQUITTO, "-c", str(self.config)], stdout=log, stderr=log)
        STARTED.append(self.process)
        wait_until(self.answers, timeout_s=120)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the broker; on SIGTERM it stores its messages."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(120)
            self.process = None


def passwords(directory: Path, name: str, password: str) -> Path:
    """Writes a file with one user for a broker; returns its path."""
    users = directory / "users"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(users), name, password], check=True, capture_output=True)
    users.chmod(0o644)
    return users


def certificates(directory: Path) -> tuple[Path, Path]:
    """Writes a self-signed certificate for 127.0.0.1 and its key; returns their paths."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    no_password = serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password))
    for path in paths:
        path.chmod(0o644)  # the broker gives up root
    return paths
