"""The world of network namespaces: unmodified agents over real kernel TCP and UDP, joined by a WAN in user space.

    devices.py    a namespace with a TUN device and an address
    schedule.py   which packet arrives where and when: delay, jitter, loss, rate limits, partitions; no clocks, no sockets
    messages.py   messages between testbed and router
    router.py     the process that moves packets between the devices
    wan.py        starts the router and changes its paths while it runs
    lateness.py   how late packets arrive, measured through the router from outside
    world.py      the backend

Namespaces and devices have no names outside: they exist as long as a process holds them, and all processes die with the testbed.
"""
