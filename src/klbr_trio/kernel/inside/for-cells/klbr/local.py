"""Speaking to the people in the session."""

from __future__ import annotations

from klbr._kernel import calls, policy


async def send(text: str) -> None:
    """Sends `text`; it is stored when this returns.

    Raises:
        TypeError: `text` is no str.
        ValueError: `text` is empty or far too long.
        Refused: The policy or the service refuses it; nothing was stored.
        RuntimeError: No cell is running; nothing was stored.
    """
    if not isinstance(text, str):
        raise TypeError(f"local.send takes a str, not {type(text).__name__}")
    checked = await policy.before_send(text) if text else text
    if not checked:
        raise ValueError("local.send takes a text that is not empty")
    await calls.call("local.send", {"text": checked})
