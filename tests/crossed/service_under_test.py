"""The real service, with a fault point: `service_under_test.py STATE PROVIDER_URL [POINT]`.

It ends the process, as a kill would, at its first commit of that point, just before or
just after. It prints its port once it serves.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import trio

from klbr_trio import (
    LlmClient,
    ModelConfig,
    ModelsConfig,
    Release,
    SessionRegistry,
    Store,
    WorkerConfig,
    serve_listener,
)

ROOT = Path(__file__).parents[2]
KILLED = 137


async def main(state: Path, url: str, point: str | None) -> None:
    def on_commit(name: str) -> None:
        if name == point:
            os._exit(KILLED)

    release = Release.publish(ROOT / "behavior", state / "releases")
    llm = LlmClient(ModelsConfig(llm=ModelConfig(url, "scripted")))
    async with (
        Store.open(state / "klbr.sqlite", on_commit=on_commit) as store,
        SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry,
        trio.open_nursery() as nursery,
    ):
        start = partial(serve_listener, registry=registry, llm=llm, release=release)
        _, port = await nursery.start(start)
        print(port, flush=True)  # noqa: T201


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
