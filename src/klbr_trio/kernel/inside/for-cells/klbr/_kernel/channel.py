"""The socket to the host: u32 length, then that many bytes of UTF-8 JSON."""

from __future__ import annotations

import json
import os
import socket
from typing import NoReturn

LARGEST_SENT = 1024 * 1024
_LOST = 70  # exit code: the host is gone, or a cell has closed the socket


class Channel:
    """Sends whole frames, reads whole frames; without its host the process ends."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # noqa: FBT003
        self._socket = socket.socket(fileno=fd)

    def send(self, frame: bytes) -> None:
        """Sends one frame that `encode` made. Never interrupted by SIGINT half-way."""
        try:
            self._socket.sendall(frame)
        except OSError as error:
            _lost(error)

    def receive(self) -> dict[str, object]:
        """The next frame from the host; the process ends if there is none."""
        size = int.from_bytes(self._exactly(4), "big")
        message: dict[str, object] = json.loads(self._exactly(size))
        return message

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                _lost(error)
            if not part:
                _lost(EOFError("the host has closed it"))
            data += part
        return bytes(data)

    def abandon(self) -> None:
        """Closes this process's copy (after a fork)."""
        self._socket.close()


def encode(message: dict[str, object]) -> bytes:
    """One frame.

    Raises:
        ValueError: It holds NaN or an infinity, or is over 1 MiB.
        TypeError: It holds something that JSON has no form for.
    """
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > LARGEST_SENT:
        raise ValueError(f"too long: {len(body):,} bytes in JSON form, at most {LARGEST_SENT:,}")
    return len(body).to_bytes(4, "big") + body


def _lost(error: Exception) -> NoReturn:
    try:
        os.write(2, f"the kernel has lost its channel to the host: {error}\n".encode())
    finally:
        os._exit(_LOST)
