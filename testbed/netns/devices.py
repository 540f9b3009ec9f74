"""Network namespaces with one TUN device each. Nothing is changed outside them, and they have no route to the outside.

A namespace exists as long as a process holds its descriptor or runs in it; a device exists as long as its own descriptor is open. Neither
has an entry in a file system that could stay behind.
"""

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sbon.errors import ConfigError
from sbon_testbed.kernel import in_network_namespace, new_network_namespace

TUN = Path("/dev/net/tun")
MTU = 1500
PREFIX = 16
NETNS_NODES_MAX = 400
"""Most nodes: the router holds two descriptors for each, and a process may have 1024 descriptors by default."""
_QUEUE_PACKETS = 2000
"""Most packets that wait in a device until the router reads them: enough for a burst while the router is busy."""

_TUNSETIFF = 0x4004_54CA
_IFF_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8943
_IFF_UP = 0x1


class Site(NamedTuple):
    """A network namespace and its device, as descriptors."""

    namespace: int
    device: int


def ip_address(number: int) -> str:
    """Returns the address of a node by number, from 10.77.0.1, known in the run's own namespaces only."""
    high, low = divmod(number + 1, 256)
    return f"10.77.{high}.{low}"


def device_name(run: str, number: int) -> str:
    """Returns the name of a node's device within its namespace; the kernel allows 15 characters."""
    return f"sbon{run}-{number}"


def refuse_without_rights() -> None:
    """Checks that this machine and user can create namespaces, before anything is started.

    Raises
    ------
    ConfigError
        Network namespaces or TUN devices cannot be made here, or not by this user. The message is one line.
    """
    if os.geteuid() != 0:
        raise ConfigError("backend netns makes network namespaces and needs root; run it as root, or use --backend local")
    if not Path("/proc/self/ns/net").exists():
        raise ConfigError("backend netns needs Linux with network namespaces and /proc; use --backend local")
    if not TUN.exists():
        raise ConfigError(f"backend netns needs {TUN}, which is missing here (modprobe tun); use --backend local")
    try:
        os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
        with new_network_namespace() as made:
            os.close(made)
    except OSError as problem:
        raise ConfigError(f"backend netns cannot make devices and namespaces here ({problem}); use --backend local") from problem


def make_site(run: str, number: int) -> Site:
    """Creates a namespace with loopback and a device that has the node's address. The calling thread stays in its own namespace.

    Raises
    ------
    OSError
        The kernel refuses.
    """
    with new_network_namespace() as namespace:
        # Nothing here uses IPv6; without it, the kernel does not search for neighbours and routers.
        with suppress(OSError):
            Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1", encoding="ascii")
        device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        name = device_name(run, number)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_WITHOUT_HEADER))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            mask = socket.inet_ntoa(struct.pack("!I", (0xFFFF_FFFF << (32 - PREFIX)) & 0xFFFF_FFFF))
            fcntl.ioctl(control, _SIOCSIFADDR, _address_request(name, ip_address(number)))
            fcntl.ioctl(control, _SIOCSIFNETMASK, _address_request(name, mask))
            fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", name.encode(), MTU))
            fcntl.ioctl(control, _SIOCSIFTXQLEN, struct.pack("16si20x", name.encode(), _QUEUE_PACKETS))
            for interface in ("lo", name):
                flags = struct.unpack("16xh", fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s2x", interface.encode())))[0]
                fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", interface.encode(), flags | _IFF_UP))
    return Site(namespace, device)


def dropped_packets(namespace: int) -> int:
    """Returns the number of packets that a namespace's device has dropped because the router did not read them in time."""
    with in_network_namespace(namespace):
        lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
    return sum(int(line.partition(":")[2].split()[11]) for line in lines if line.strip().startswith("sbon"))


def _address_request(name: str, address: str) -> bytes:
    return struct.pack("16sHH4s16x", name.encode(), socket.AF_INET, 0, socket.inet_aton(address))
