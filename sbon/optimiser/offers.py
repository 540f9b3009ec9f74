"""Decides whether a host offers a running operator to another query: only if one more output does not hurt the running ones."""

from sbon.placement.reservations import HostingConfig


def why_not_share(
    config: HostingConfig,
    *,
    outputs: int,
    bytes_per_s_one_more: float,
    bytes_per_s_here: float,
    load: float,
    stalled: bool,
    movable: bool = True,
) -> str:
    """Returns the reason against one more output of an operator; empty if there is none.

    A pinned operator is shared even on a busy host, because a second copy would run on the same host and cost more than one more output.

    Parameters
    ----------
    outputs : number of outputs that it has
    bytes_per_s_one_more : rate of another output, taken from its fastest one
    bytes_per_s_here : rate of all links that leave this host
    load : load of the processors, 0 to 2 (`sbon_agent.cpu_load`)
    stalled : it waits for credit from its present consumers
    movable : it could run on another node
    """
    if stalled:
        return "it waits for the consumers that it has"
    if outputs >= config.share_outputs_max:
        return f"it has {outputs} outputs (hosting.share_outputs_max)"
    if not movable:
        return ""
    if load > config.share_load_max:
        return f"the load is {load:.2f}, expected at most {config.share_load_max} (hosting.share_load_max)"
    limit = config.share_bytes_per_s_max
    if limit and bytes_per_s_here + bytes_per_s_one_more > limit:
        rate = bytes_per_s_here + bytes_per_s_one_more
        return f"{rate:.3g} bytes/s would leave, expected at most {limit:.3g} (hosting.share_bytes_per_s_max)"
    return ""
