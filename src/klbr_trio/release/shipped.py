"""Where the behaviour that ships with the package lies."""

from __future__ import annotations

from pathlib import Path

from klbr_trio.errors import ReleaseRefused


def default_behavior() -> Path:
    """The folder of the behaviour that ships: in an installed wheel, else in the source tree.

    Raises:
        ReleaseRefused: The installation holds neither.
    """
    package = Path(__file__).resolve().parents[1]
    return shipped_with(package)


def shipped_with(package: Path) -> Path:
    """The behaviour that ships with the package in the folder `package`."""
    # A wheel carries it inside the package; in a source tree the package is src/klbr_trio.
    for folder in (package / "_behavior", package.parents[1] / "behavior"):
        if (folder / "behavior.toml").is_file():
            return folder
    raise ReleaseRefused(
        f"{package}: no behaviour ships with this installation; reinstall the package,"
        " or name a behaviour folder"
    )
