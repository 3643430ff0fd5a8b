"""`klbr release publish` and `klbr verify`: what needs the store's files and no service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.settings import here
from klbr_trio.daemon.folder import StateFolder, prepare
from klbr_trio.errors import DigestMismatch, ReleaseRefused
from klbr_trio.release import Release, default_behavior
from klbr_trio.store import check_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.cli.output import Output


def publish(folder: str | None, *, output: Output, flags: Mapping[str, object]) -> Exit:
    """Publish a behaviour folder into the state folder's releases."""
    settings = here(flags)
    source = Path(folder) if folder else settings.path("behavior") or default_behavior()
    release = Release.publish(source, prepare(settings.state).releases)
    values = {"digest": release.digest, "path": str(release.path), "name": release.settings.name}
    output.fact(values, release.digest)
    return Exit.DONE


def verify(*, output: Output, flags: Mapping[str, object]) -> Exit:
    """Check everything that a state folder's store and releases must hold to."""
    folder = StateFolder(here(flags).state.absolute())
    if not folder.database.exists():
        raise Problem(Exit.NOT_FOUND, f"there is no store in {folder.path}; name one with --state")
    findings = [*check_file(folder.database), *_damaged_releases(folder)]
    text = "\n".join(findings) if findings else f"{folder.path} is sound"
    output.fact({"state": str(folder.path), "sound": not findings, "findings": findings}, text)
    if findings:
        output.note(f"{len(findings)} checks failed; restore a backup, or report this")
        return Exit.CHECK_FAILED
    return Exit.DONE


def _damaged_releases(folder: StateFolder) -> list[str]:
    found = []
    names = [path.name for path in folder.releases.glob("[0-9a-f]*")]
    for digest in sorted(names):
        try:
            Release.open(folder.releases, digest)
        except (DigestMismatch, ReleaseRefused) as exc:
            found.append(f"release {digest[:12]}: {exc}")
    return found
