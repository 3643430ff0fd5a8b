"""`klbr token`: the tokens of a state folder, and of the service that runs on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import trio

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.link import open_link
from klbr_trio.cli.place import UnixPlace
from klbr_trio.cli.settings import here
from klbr_trio.daemon.announcement import read_announcement
from klbr_trio.daemon.folder import StateFolder, prepare
from klbr_trio.daemon.keys import RELOAD
from klbr_trio.daemon.token import add_read_token, read_token, rotate_token
from klbr_trio.store.lock import holder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.cli.output import Output

RELOAD_S: Final = 15.0
"""How long a running service is given to take a new token."""

_ASK_AGAIN_S: Final = 0.25


def show(*, output: Output, flags: Mapping[str, object]) -> Exit:
    """Print the service's token."""
    folder = StateFolder(here(flags).state.absolute())
    try:
        token = read_token(folder.token)
    except FileNotFoundError as exc:
        raise Problem(
            Exit.NOT_FOUND,
            f"there is no token in {folder.path} yet; the first start of the service makes one",
        ) from exc
    output.fact({"token": token}, token)
    return Exit.DONE


def new(*, read_only: bool, output: Output, flags: Mapping[str, object]) -> Exit:
    """Print one more token, which a running service takes at once."""
    if not read_only:
        raise Problem(
            Exit.USAGE,
            "only read-only tokens can be added; say --read-only, or replace the service's own "
            "with: klbr token rotate",
        )
    folder, service = _folder_and_service(flags)
    token = add_read_token(folder.read_tokens)
    _hand_over(folder, service, token)
    output.fact({"token": token, "rights": "read"}, token)
    return Exit.DONE


def rotate(*, read_only: bool, output: Output, flags: Mapping[str, object]) -> Exit:
    """Print a new token; the old one, or all read-only ones, count no more when this returns."""
    folder, service = _folder_and_service(flags)
    if read_only:
        token = add_read_token(folder.read_tokens, alone=True)
    else:
        token = rotate_token(folder.token)
    _hand_over(folder, service, token)
    output.fact({"token": token, "rights": "read" if read_only else "full"}, token)
    return Exit.DONE


def _folder_and_service(flags: Mapping[str, object]) -> tuple[StateFolder, int | None]:
    """The folder, and the process of the service that runs on it, if one does."""
    folder = prepare(here(flags).state)
    owner = holder(folder.lock) if folder.lock.exists() else None
    if owner is None:
        return folder, None
    announcement = read_announcement(folder.announcement)
    if announcement is None or announcement.pid != owner.pid:
        raise Problem(
            Exit.TRY_AGAIN,
            f"the service on {folder.path} is starting or stopping; nothing was changed, try again",
        )
    return folder, announcement.pid


def _hand_over(folder: StateFolder, service: int | None, token: str) -> None:
    """A service that runs has the new token, and with it has forgotten the old one."""
    if service is not None:
        os.kill(service, RELOAD)
        trio.run(_taken, UnixPlace(folder.socket, token))


async def _taken(place: UnixPlace) -> None:
    with trio.move_on_after(RELOAD_S):
        while True:
            try:
                async with open_link([place]):
                    return
            except Problem as exc:
                if exc.code not in (Exit.UNAUTHORISED, Exit.TRY_AGAIN):
                    raise
            await trio.sleep(_ASK_AGAIN_S)
    raise Problem(
        Exit.FAILED,
        "the new token is stored, but the running service does not take it; see its log, and "
        "restart it",
    )
