"""A service whose disk is full for a while: what is admitted, refused, and works again.

Run as a program: the bound on file sizes is the whole process's. Prints one JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from pathlib import Path

import trio

from klbr_trio.errors import StoreUnavailable
from klbr_trio.store import Input, Store, check

FREE = resource.RLIM_INFINITY


def bound(size: int) -> None:
    """No file grows past `size`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, FREE))


async def main(path: Path) -> None:
    said: dict[str, object] = {}
    refused: list[str] = []
    async with Store.open(path) as store:
        await store.admit(Input("s-1", "cli", "before", "k-0"))

        async def admit(key: str) -> None:
            try:
                await store.admit(Input("s-1", "cli", "during", key))
            except StoreUnavailable as exc:
                refused.append(f"{key}: {exc}")

        bound(os.stat(f"{path}-wal").st_size + 4096)  # noqa: PTH116
        async with trio.open_nursery() as nursery:
            for n in range(5):
                nursery.start_soon(admit, f"k-{n + 1}")
        said["trouble"] = store.trouble
        said["head_while_full"] = store.head("s-1")
        said["duplicate"] = (await store.admit(Input("s-1", "cli", "before", "k-0"))).duplicate
        said["trouble_after_a_read"] = store.trouble
        bound(FREE)
        said["refused"] = sorted(refused)
        said["again"] = (await store.admit(Input("s-1", "cli", "during", "k-1"))).seq
        said["trouble_at_the_end"] = store.trouble
        said["check"] = await check(store)
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    trio.run(main, Path(sys.argv[1]))
