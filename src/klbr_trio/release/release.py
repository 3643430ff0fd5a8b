"""The release itself: published from a folder, opened by its digest."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import TypeAlias

import attrs

from klbr_trio.errors import DigestMismatch, ReleaseRefused
from klbr_trio.release import staging
from klbr_trio.release.content import read_content
from klbr_trio.release.folder import FolderImage, read_published, read_source
from klbr_trio.release.manifest import digest_of, is_digest
from klbr_trio.release.settings import BehaviorSettings

logger = logging.getLogger(__name__)

StrPath: TypeAlias = str | os.PathLike[str]


@attrs.frozen
class Release:
    """An immutable, content-addressed copy of a behaviour folder."""

    digest: str
    """64 hex digits; the name of the folder, made from everything in it."""
    path: Path
    """The published folder, read-only."""
    instructions: str = attrs.field(repr=False)
    """What `prompt.md` says."""
    settings: BehaviorSettings = attrs.field(repr=False)
    """What `behavior.toml` says."""

    @classmethod
    def publish(cls, source_dir: StrPath, releases_dir: StrPath) -> Release:
        """A release of the content of `source_dir` stands in `releases_dir`.

        The same content again gives the same release and writes nothing. A
        release that was damaged since is replaced by what the source says.

        Durability: the release is on the disk when this returns. A crash before
        that leaves nothing that opens.

        Raises:
            ReleaseRefused: The folder holds something that has no place in a
                behaviour, or can't be read or written. The message names it and
                says what to do.
        """
        source, releases = _places(source_dir, releases_dir)
        image = read_source(source)
        content = read_content(image, root=source)
        digest = digest_of(image.files)
        staging.prepare(releases)
        target = releases / digest
        if not _is_intact(target):
            _install(image, target)
        return cls(digest, target, content.instructions, content.settings)

    @classmethod
    def open(cls, releases_dir: StrPath, digest: str) -> Release:
        """The release of that digest, every file of it verified.

        Raises:
            DigestMismatch: It is missing, or is not what was published: a file
                is missing, too many, or different, or `digest` is no digest.
            ReleaseRefused: It is intact, but an older version published it with
                settings that this one does not know.
        """
        if not is_digest(digest):
            raise DigestMismatch(f"{ascii(digest)[:80]} is not a digest: 64 hex digits, a-f small")
        path = Path(releases_dir).absolute() / digest
        image = _verified(path)
        content = read_content(image, root=path)
        return cls(digest, path, content.instructions, content.settings)


def _places(source_dir: StrPath, releases_dir: StrPath) -> tuple[Path, Path]:
    source = Path(os.path.realpath(source_dir))
    releases = Path(releases_dir).absolute()
    try:
        mode = source.stat().st_mode
    except FileNotFoundError as exc:
        raise ReleaseRefused(f"{source}: does not exist; name a behaviour folder") from exc
    except OSError as exc:
        raise ReleaseRefused(f"{source}: can't be read ({exc.strerror})") from exc
    if not stat.S_ISDIR(mode):
        raise ReleaseRefused(f"{source}: is not a folder; name a behaviour folder")
    if Path(os.path.realpath(releases)).is_relative_to(source):
        raise ReleaseRefused(
            f"{source}: contains the releases folder {releases}; keep the two apart"
        )
    return source, releases


def _install(image: FolderImage, target: Path) -> None:
    try:
        with staging.staged(image.files, target.parent) as folder:
            done = staging.move_in(folder, target) or _repair(folder, target)
    except OSError as exc:
        raise ReleaseRefused(
            f"{target}: can't be written ({exc.strerror}); make room, or name another folder"
        ) from exc
    if not done:
        raise ReleaseRefused(f"{target}: something else writes there; end it and publish again")


def _repair(folder: Path, target: Path) -> bool:
    """What is at `target` is intact, if need be because `folder` has taken its place."""
    # Only under the lock is anything moved out: otherwise two publishers that
    # both saw the damage would move out each other's good release.
    with staging.alone(target.parent):
        if _is_intact(target):
            return True
        logger.warning(
            "a damaged release is replaced",
            extra={"action": "release_replaced", "release": target.name},
        )
        staging.move_out(target)
        return staging.move_in(folder, target) or _is_intact(target)


def _is_intact(path: Path) -> bool:
    try:
        _verified(path)
    except DigestMismatch:
        return False
    return True


def _verified(path: Path) -> FolderImage:
    """The content of the release at `path`, which is what its name says."""
    if not os.path.lexists(path):
        raise DigestMismatch(f"{path}: no such release; publish its behaviour again")
    try:
        image = read_published(path)
    except ReleaseRefused as exc:
        raise DigestMismatch(f"damaged release: {exc}") from exc
    if image.empty:
        raise DigestMismatch(f"{path}: has an empty folder {image.empty[0]!a} too many")
    found = digest_of(image.files)
    if found != path.name:
        raise DigestMismatch(
            f"{path}: its files give the digest {found}; publish its behaviour again"
        )
    return image
