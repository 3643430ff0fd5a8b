"""What a folder's files mean as a behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.errors import ReleaseRefused
from klbr_trio.release.settings import BehaviorSettings, parse_settings

if TYPE_CHECKING:
    from pathlib import Path

    from klbr_trio.release.folder import FolderImage

MAX_TEXT_BYTES: Final = 256 * 1024  # of one of the named files; instructions are paid for each step


@attrs.frozen
class Content:
    """A behaviour as the service needs it."""

    instructions: str
    settings: BehaviorSettings


def read_content(image: FolderImage, *, root: Path) -> Content:
    """The behaviour in `image`; `root` names the folder in messages.

    Raises:
        ReleaseRefused: A file is missing, or says what it can't.
    """
    settings = _required(image, "behavior.toml", root=root)
    instructions = _required(image, "prompt.md", root=root)
    if not instructions.strip():
        raise ReleaseRefused(f"{root}/prompt.md: is empty; write the agent's instructions in it")
    policy = _text(image, "policy.py", root=root)
    if policy is not None:
        _check_python(policy, path=f"{root}/policy.py")
    return Content(instructions, parse_settings(settings, path=f"{root}/behavior.toml"))


def _required(image: FolderImage, path: str, *, root: Path) -> str:
    text = _text(image, path, root=root)
    if text is None:
        raise ReleaseRefused(f"{root}/{path}: is missing; a behaviour needs it")
    return text


def _text(image: FolderImage, path: str, *, root: Path) -> str | None:
    data = image.get(path)
    if data is None:
        return None
    if len(data) > MAX_TEXT_BYTES:
        raise ReleaseRefused(
            f"{root}/{path}: has more than {MAX_TEXT_BYTES // 1024} KiB; shorten it"
        )
    try:
        return data.decode().removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        raise ReleaseRefused(
            f"{root}/{path}: is not UTF-8 ({exc.reason}); save it as such"
        ) from exc


def _check_python(source: str, *, path: str) -> None:
    """The source compiles. It is never run here: that is the kernel's business."""
    try:
        compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as exc:
        raise ReleaseRefused(f"{path}: line {exc.lineno}: {exc.msg}; correct it") from exc
    except (ValueError, RecursionError, MemoryError) as exc:
        raise ReleaseRefused(f"{path}: does not compile ({exc}); correct it") from exc
