"""Keys: the state folder's tokens as a running service has them.

The command line writes the files and sends `RELOAD`; the service reads them again.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Final

import trio

from klbr_trio.daemon.token import keep_token, load_read_tokens, read_token
from klbr_trio.errors import ConfigError
from klbr_trio.service.rights import KeyRing, Tokens

if TYPE_CHECKING:
    from types import FrameType

    from klbr_trio.daemon.folder import StateFolder

RELOAD: Final = signal.SIGUSR1
"""Not SIGHUP, by which a terminal that is closed ends what was started in it."""

_LOG: Final = logging.getLogger("klbr_trio.daemon")


def survive_reload() -> None:
    """`RELOAD` ends the process at no time of its life, also while nobody follows it."""
    signal.signal(RELOAD, _pass)


def first_keys(folder: StateFolder) -> KeyRing:
    """The folder's tokens; the service's own is made if there is none.

    Raises:
        ConfigError: A file is not this user's alone, or holds no tokens.
    """
    return KeyRing(Tokens((keep_token(folder.token),), load_read_tokens(folder.read_tokens)))


async def follow_files(
    folder: StateFolder,
    keys: KeyRing,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Read the tokens again whenever `RELOAD` comes, until cancelled.

    Files that can't be read change nothing: the old tokens go on to count.
    """
    with trio.open_signal_receiver(RELOAD) as signals:
        task_status.started()
        async for _ in signals:
            try:
                full, read_only = read_token(folder.token), load_read_tokens(folder.read_tokens)
            except (ConfigError, FileNotFoundError) as exc:
                _LOG.error("the tokens stay as they were: %s", exc)
            else:
                keys.replace(Tokens((full,), read_only))


def _pass(_number: int, _frame: FrameType | None) -> None:
    pass
