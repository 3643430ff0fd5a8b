"""What the docs must name, and that what they name is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from klbr_trio.domain.events import KINDS
from klbr_trio.errors import RequestError
from klbr_trio.store import CommitPoint
from klbr_trio.wire import client, server

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
SERVER_TYPES = sorted(
    vars(message)["type"]
    for message in vars(server).values()
    if isinstance(message, type) and message.__module__ == server.__name__
)


def codes(base: type[RequestError]) -> set[str]:
    return {base.code}.union(*(codes(sub) for sub in base.__subclasses__()))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_event_kind_is_in_the_protocol(kind: str) -> None:
    assert f"| `{kind}` |" in PROTOCOL


@pytest.mark.parametrize("name", sorted(client.TYPES))
def test_every_client_message_is_in_the_protocol(name: str) -> None:
    assert f"| `{name}` |" in PROTOCOL


@pytest.mark.parametrize("name", SERVER_TYPES)
def test_every_server_message_is_in_the_protocol(name: str) -> None:
    assert f"| `{name}` |" in PROTOCOL


@pytest.mark.parametrize("code", sorted(codes(RequestError)))
def test_every_error_code_is_in_the_protocol(code: str) -> None:
    assert f"| `{code}` |" in PROTOCOL


@pytest.mark.parametrize("point", list(CommitPoint), ids=lambda point: point.label)
def test_every_commit_point_is_documented(point: CommitPoint) -> None:
    assert f"| {point.label} |" in (ROOT / "docs" / "durability.md").read_text()


def test_what_is_generated_is_what_the_code_says() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
