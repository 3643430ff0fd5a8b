"""Runs llama.cpp's HTTP server until it is killed: `llama_server.py WEIGHTS PORT`."""

from __future__ import annotations

import sys
import time

import xllamacpp


def main(weights: str, port: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.port = port
    params.n_ctx = 2048  # half of it for each of two requests: soon full
    params.n_parallel = 2
    params.endpoint_slots = True
    params.use_jinja = True
    params.warmup = False
    server = xllamacpp.Server(params)
    while server.listening_address:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
