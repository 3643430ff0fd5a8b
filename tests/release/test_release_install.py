"""A release is put in its place whole or not at all, whoever else is at work."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from behavior_folders import SMALLEST, files_in, write_folder

from klbr_trio.errors import DigestMismatch
from klbr_trio.release import Release

if TYPE_CHECKING:
    from pathlib import Path

_FILES = {**SMALLEST, "policy.py": b"x = 1\n", "lib/a.py": b"a = 1\n", "lib/b/c.txt": b"c" * 70_000}


def _python(script: str, *args: object) -> subprocess.Popen[str]:
    """Another process that runs `script`; it is a real publisher of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process: subprocess.Popen[str], said: str | None = None) -> str:
    out, err = process.communicate(said, timeout=60)
    assert process.returncode == 0, err
    return out.strip()


@pytest.mark.parametrize("damaged", [False, True])
def test_publishers_at_the_same_moment_all_succeed(tmp_path: Path, *, damaged: bool) -> None:
    source = write_folder(tmp_path / "source", _FILES)
    expected = Release.publish(source, tmp_path / "elsewhere").digest
    script = """
        import sys
        from klbr_trio.release import Release
        for line in sys.stdin:  # each line is a starting shot
            print(Release.publish(sys.argv[1], line.strip()).digest, flush=True)
    """
    publishers = [_python(script, source) for _ in range(3)]
    rounds = [tmp_path / f"releases-{n}" for n in range(8)]
    for releases in rounds:
        if damaged:
            (releases / expected).mkdir(parents=True)
            (releases / expected / "prompt.md").write_text("damaged")
        for publisher in publishers:
            assert publisher.stdin is not None
            publisher.stdin.write(f"{releases}\n")
            publisher.stdin.flush()
        for publisher in publishers:
            assert publisher.stdout is not None
            assert publisher.stdout.readline().strip() == expected
        assert files_in(Release.open(releases, expected).path) == _FILES
        assert [path.name for path in releases.iterdir()] == [expected]
    for publisher in publishers:
        _answer(publisher)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True])
def test_a_publisher_that_is_killed_anywhere_leaves_nothing_half(
    tmp_path: Path, *, damaged: bool
) -> None:
    """Each child is killed at its n-th call of the system, for every n there is."""
    source = write_folder(tmp_path / "source", _FILES)
    script = """
        import os, signal, sys
        from pathlib import Path
        from klbr_trio.errors import DigestMismatch
        from klbr_trio.release import Release

        source, base, digest, damaged = sys.argv[1:]

        def publish_and_die(releases, n):
            left = [n]
            def hook(event, args):
                if event == "open" or event.startswith(("os.", "shutil.", "tempfile.")):
                    left[0] -= 1
                    if left[0] == -1:  # once: to kill is such a call too
                        os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(hook)
            Release.publish(source, releases)
            os._exit(0)

        n = whole = 0
        while True:
            releases = Path(base) / str(n)
            if damaged:
                (releases / digest).mkdir(parents=True)
                (releases / digest / "prompt.md").write_text("damaged")
            child = os.fork()
            if child == 0:
                publish_and_die(releases, n)
            status = os.waitpid(child, 0)[1]
            for path in releases.iterdir() if releases.exists() else ():
                assert path.name == digest or path.name.startswith(".publish-"), path
            try:
                Release.open(releases, digest)
                whole += 1
            except DigestMismatch:
                left = releases / digest
                assert not left.exists() or (damaged and len(list(left.iterdir())) == 1), n
            assert Release.publish(source, releases) == Release.open(releases, digest)
            if status == 0:
                break
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
            n += 1
        print(n, whole)
    """
    digest = Release.publish(source, tmp_path / "elsewhere").digest
    kills, whole = map(
        int, _answer(_python(script, source, tmp_path, digest, "x" * damaged)).split()
    )
    # Reading alone is some twenty calls; after the rename only tidying is left.
    assert kills > 40
    assert 1 < whole < 10


def test_what_a_dead_publisher_left_is_cleared_in_time(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    source = write_folder(tmp_path / "source", _FILES)
    for name, age_s in {".publish-old": 7200, ".publish-new": 60, "unrelated": 7200}.items():
        (releases / name / "lib").mkdir(parents=True)
        (releases / name / "lib" / "a.py").write_text("")
        (releases / name / "lib").chmod(0o500)
        now = (releases / name).stat().st_mtime
        os.utime(releases / name, (now - age_s, now - age_s))
    (tmp_path / "target").mkdir()
    (releases / ".publish-link").symlink_to(tmp_path / "target")
    os.utime(releases / ".publish-link", (0, 0), follow_symlinks=False)
    release = Release.publish(source, releases)
    left = {path.name for path in releases.iterdir()}
    assert left == {release.digest, ".publish-new", "unrelated"}
    assert (tmp_path / "target").is_dir()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_release_is_the_owners_alone_and_read_only(tmp_path: Path, umask: int) -> None:
    source = write_folder(tmp_path / "source", _FILES)
    before = os.umask(umask)
    try:
        release = Release.publish(source, tmp_path / "releases")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "releases").stat().st_mode) == 0o700
    for path in [release.path, *release.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o500 if path.is_dir() else 0o400), path


def test_a_releases_folder_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases").chmod(0o777)
    Release.publish(write_folder(tmp_path / "source", _FILES), tmp_path / "releases")
    assert stat.S_IMODE((tmp_path / "releases").stat().st_mode) == 0o700


_AS_ANYBODY = """
    import os, sys, tempfile
    from pathlib import Path
    from klbr_trio.errors import DigestMismatch, ReleaseRefused
    from klbr_trio.release import Release, default_behavior

    if os.getuid() == 0:  # modes mean nothing to root
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    with tempfile.TemporaryDirectory() as temp:
        source, releases = Path(temp) / "source", Path(temp) / "releases"
        (source / "lib").mkdir(parents=True)
        for name in ("behavior.toml", "prompt.md", "lib/a.py"):
            (source / name).write_text("# x")
"""


def test_an_ordinary_user_publishes_repairs_and_opens() -> None:
    script = (
        _AS_ANYBODY
        + """
        release = Release.publish(source, releases)
        try:
            (release.path / "prompt.md").write_text("changed")
        except PermissionError:
            pass
        else:
            raise SystemExit("a release could be written to")
        (release.path / "lib").chmod(0o700)
        (release.path / "lib" / "a.py").unlink()
        assert Release.publish(source, releases) == Release.open(releases, release.digest)
        assert [path.name for path in releases.iterdir()] == [release.digest]
    """
    )
    _answer(_python(script))


def test_what_can_not_be_read_or_written_is_refused_by_name() -> None:
    script = (
        _AS_ANYBODY
        + """
        release = Release.publish(source, releases)
        for root, kind, again in (
            (source, ReleaseRefused, lambda: Release.publish(source, releases)),
            (release.path, DigestMismatch, lambda: Release.open(releases, release.digest)),
        ):
            for path in (root / "lib" / "a.py", root / "lib"):
                mode = path.stat().st_mode
                path.chmod(0)
                try:
                    again()
                except kind as exc:
                    assert f"{path}: can't be read (Permission denied)" in str(exc), exc
                else:
                    raise SystemExit(f"{path} was read")
                path.chmod(mode)
        (source / "prompt.md").write_text("other")
        releases.parent.chmod(0o500)
        try:
            Release.publish(source, releases.parent / "new")
        except ReleaseRefused as exc:
            assert "new: can't be used for releases (Permission denied)" in str(exc), exc
        else:
            raise SystemExit("written without the right to")
        releases.parent.chmod(0o700)
    """
    )
    _answer(_python(script))


_CHANGING = """
    import sys
    from pathlib import Path
    from klbr_trio.errors import ReleaseRefused
    from klbr_trio.release import Release

    source, releases, most = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    looks = 0

    def hook(event, args):
        # Each look at the folder begins by listing it; the file changes after that.
        global looks
        if event == "open" and args[0] == "prompt.md" and looks < most:
            looks += 1
            (source / "lib" / "a.py").write_text(f"version {looks}")

    sys.addaudithook(hook)
    try:
        release = Release.publish(source, releases)
        print((release.path / "lib" / "a.py").read_text())
    except ReleaseRefused as exc:
        print(exc)
"""


def test_a_folder_that_settles_is_published_as_it_settled(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", _FILES)
    assert _answer(_python(_CHANGING, source, tmp_path / "releases", 2)) == "version 2"


def test_a_folder_that_keeps_changing_is_refused(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", _FILES)
    said = _answer(_python(_CHANGING, source, tmp_path / "releases", 1_000_000))
    assert "changes while it is read" in said
    assert not (tmp_path / "releases").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE fails the write of a file the way a full disk does."""
    source = write_folder(tmp_path / "source", _FILES)
    script = """
        import resource, signal, sys
        from klbr_trio.errors import ReleaseRefused
        from klbr_trio.release import Release
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            Release.publish(sys.argv[1], sys.argv[2])
        except ReleaseRefused as exc:
            print(exc)
    """
    said = _answer(_python(script, source, tmp_path / "releases"))
    assert "can't be written (File too large)" in said
    assert list((tmp_path / "releases").iterdir()) == []


def test_a_release_that_was_removed_does_not_open(tmp_path: Path) -> None:
    release = Release.publish(write_folder(tmp_path / "source", _FILES), tmp_path / "releases")
    release.path.rename(tmp_path / "releases" / ("0" * 64))
    for digest in (release.digest, "0" * 64):
        with pytest.raises(DigestMismatch, match=digest):
            Release.open(tmp_path / "releases", digest)
