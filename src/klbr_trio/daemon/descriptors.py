"""How many files and sockets this process may have open."""

from __future__ import annotations

import logging
import resource
from typing import Final

ENOUGH: Final = 65_536
NEEDED: Final = 4096
"""1,000 clients, as many again on their way in, 200 kernels with their pipes, and room."""

_LOG: Final = logging.getLogger("klbr_trio.daemon")


def take_descriptors() -> int:
    """The soft limit is as high as the system allows, up to `ENOUGH`; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < NEEDED:
        _LOG.warning(
            "only %d files may be open at once: many clients or kernels will be refused", soft
        )
    return soft
