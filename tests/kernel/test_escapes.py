"""What a cell must not reach, tried from the inside, at each level that is a sandbox."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from kernel_lab import SANDBOXES, Lab, config_of, environment_of, make_spec, open_lab

from klbr_trio.kernel.sandbox import Level

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

SECRET = "klbr-test-secret-5f1c"


@attrs.frozen
class Outside:
    """What lies around the kernel, for its cells to reach for."""

    secret: Path
    other: Path
    path: Path
    port: int
    abstract: str


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    secret = tmp_path / "token"
    secret.write_text(SECRET)
    other = tmp_path / "other" / "workspace"
    other.mkdir(parents=True)
    (other / "notes").write_text(SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"klbr-test-{os.getpid()}"
        for address in (f"\0{abstract}", str(tmp_path / "sock")):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
        yield Outside(secret, other, tmp_path / "sock", tcp.getsockname()[1], abstract)


@pytest.fixture(params=SANDBOXES, ids=lambda level: level.value)
async def caged(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Lab]:
    async with open_lab(make_spec(tmp_path), config_of(request.param)) as lab:
        yield lab


def level_of(lab: Lab) -> Level:
    return lab.config.sandbox.level


SYSCALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"

# A cell, what it must fail with at level full, and at level reduced.
REFUSED: dict[str, tuple[str, str, str]] = {
    "the token": ("open({secret!r}).read()", "FileNotFoundError", "PermissionError"),
    "another workspace": ("import os; os.listdir({other!r})", "FileNotFoundError", "PermissionError"),
    "the host's environment": ("open('/proc/{host}/environ').read()", "FileNotFoundError", "PermissionError"),
    "the host's command line": ("open('/proc/{host}/cmdline').read()", "FileNotFoundError", "PermissionError"),
    "the host's descriptors": ("import os; os.listdir('/proc/{host}/fd')", "FileNotFoundError", "PermissionError"),
    "the host's memory": ("open('/proc/{host}/mem', 'rb').read(1)", "FileNotFoundError", "PermissionError"),
    "its home folder": ("import os; os.listdir({home!r} + '/.ssh')", "FileNotFoundError|PermissionError", "FileNotFoundError|PermissionError"),
    "a signal to the host": ("import os; os.kill({host}, 0)", "ProcessLookupError", "PermissionError"),
    "the host's limits": ("import resource; resource.prlimit({host}, resource.RLIMIT_NOFILE, (9, 9))", "ProcessLookupError", "PermissionError"),
    "the host's processors": ("import os; os.sched_setaffinity({host}, [0])", "ProcessLookupError", "PermissionError"),
    "loopback": ("import socket; socket.create_connection(('127.0.0.1', {port}), 5)", "ConnectionRefusedError", "PermissionError"),
    "an abstract socket": ("import socket; socket.socket(socket.AF_UNIX).connect('\\0' + {abstract!r})", "ConnectionRefusedError", "Address family not supported"),
    "a socket in a folder": ("import socket; socket.socket(socket.AF_UNIX).connect({path!r})", "FileNotFoundError", "Address family not supported"),
    "UDP": ("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))", "unreachable", "Address family not supported"),
    "TCP to elsewhere": ("import socket; socket.create_connection(('192.0.2.1', 80), 5)", "unreachable", "PermissionError"),
    "TCP that is opened by sending": ("import socket; socket.socket().sendto(b'x', socket.MSG_FASTOPEN, ('127.0.0.1', {port}))", "ConnectionRefused|not supported|progress", "PermissionError"),
    "multipath TCP": ("import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(('127.0.0.1', {port}))", "ConnectionRefusedError|not available|not supported", "Address family not supported"),
    "a virtual machine's host": ("import socket; socket.socket(40, socket.SOCK_STREAM)", "Address family not supported", "Address family not supported"),
    "packets": ("import socket; socket.socket(17, socket.SOCK_RAW)", "Address family not supported|PermissionError", "Address family not supported"),
    "the system's settings": ("open('/etc/klbr-was-here', 'w')", "OSError|PermissionError", "PermissionError"),
    "the system's programs": ("open('/usr/klbr-was-here', 'w')", "OSError|PermissionError", "PermissionError"),
    "the interpreter": ("import sys; open(sys.prefix + '/klbr-was-here', 'w')", "OSError|PermissionError", "PermissionError"),
    "the worker's own code": ("import klbr; open(klbr.__path__[0] + '/was_here.py', 'w')", "OSError|PermissionError", "PermissionError"),
    "the release": ("import sys; open([p for p in sys.path if p.endswith('release/lib')][0][:-3] + 'policy.py', 'w')", "OSError|PermissionError", "PermissionError"),
    "the root folder": ("open('/klbr-was-here', 'w')", "OSError|PermissionError", "PermissionError"),
    "the devices' folder": ("open('/dev/klbr-was-here', 'w')", "OSError|PermissionError", "PermissionError"),
    "the kernel's settings": ("open('/proc/sys/kernel/core_pattern', 'w')", "OSError|PermissionError", "PermissionError"),
    "a new device": ("import os, stat; os.mknod('disk', stat.S_IFBLK | 0o600, os.makedev(254, 0))", "PermissionError", "PermissionError"),
    "the disk": ("open('/dev/vda', 'rb')", "FileNotFoundError", "PermissionError|FileNotFoundError"),
    "the kernel's log": ("open('/dev/kmsg', 'rb')", "FileNotFoundError", "PermissionError"),
    "another root folder": ("import os; os.chroot('.')", "PermissionError", "PermissionError"),
    "a wider limit": ("import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))", "ValueError|PermissionError", "ValueError|PermissionError"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
async def test_a_cell_can_not_reach(caged: Lab, outside: Outside, what: str) -> None:
    code, full, reduced = REFUSED[what]
    error = await caged.error(
        code.format(
            secret=str(outside.secret), other=str(outside.other), path=str(outside.path),
            port=outside.port, abstract=outside.abstract, host=os.getpid(), home=str(Path.home()),
        )
    )  # fmt: skip
    last = [line for line in error.splitlines() if not line.startswith("Hint:")][-1]
    assert re.search(full if level_of(caged) is Level.FULL else reduced, last), last
    assert await caged.value("1 + 1") == "2"


# Numbers of x86_64 and aarch64; each must be refused with EPERM, clone3 with ENOSYS.
CALLS = {
    "ptrace": (101, 117, "0x4206, {host}, 0, 0"),
    "pidfd_getfd": (438, 438, "0, 0, 0"),
    "unshare": (272, 97, "0x10000000"),
    "mount": (165, 40, "b'none', b'/tmp', b'tmpfs', 0, 0"),
    "setns": (308, 268, "0, 0"),
    "keyctl": (250, 219, "0, 0"),
    "io_uring_setup": (425, 425, "1, 0"),
    "bpf": (321, 280, "0, 0, 0"),
    "perf_event_open": (298, 241, "0, 0, 0, 0, 0"),
    "userfaultfd": (323, 282, "0"),
    "open_by_handle_at": (304, 265, "0, 0, 0"),
    "shmget": (29, 194, "0, 1 << 30, 0o1600"),
    "clone3": (435, 435, "0, 0"),
}


async def test_calls_that_no_cell_needs_are_refused(caged: Lab) -> None:
    at = 0 if os.uname().machine == "x86_64" else 1
    tries = {
        name: f"{numbers[at]}, {numbers[2].format(host=os.getpid())}"
        for name, numbers in CALLS.items()
    }
    lines = [
        f"found[{name!r}] = (libc.syscall({arguments}), ctypes.get_errno())"
        for name, arguments in tries.items()
    ]
    found = await caged.value(SYSCALL + "found = {}\n" + "\n".join(lines) + "\nfound")
    expected = {name: (-1, 38 if name == "clone3" else 1) for name in CALLS}
    assert found == repr(expected)


async def test_a_namespace_can_not_be_had_by_clone_either(caged: Lab) -> None:
    number = 56 if os.uname().machine == "x86_64" else 220
    code = f"libc.syscall({number}, 0x10000000 | 17, 0, 0, 0, 0), ctypes.get_errno()"
    assert await caged.value(SYSCALL + code) == "(-1, 1)"


async def test_no_process_shows_the_hosts_secret(caged: Lab, outside: Outside) -> None:
    assert outside.secret.read_text() == SECRET
    found = await caged.value(
        "import os, glob\n"
        "needle = bytes(reversed(b'c1f5-terces-tset-rblk'))\n"
        "found = []\n"
        "for path in glob.glob('/proc/[0-9]*/*') + glob.glob('/proc/self/fd/*'):\n"
        "    try:\n"
        "        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)\n"
        "        if needle in os.read(fd, 1 << 20): found.append(path)\n"
        "    except OSError: pass\n"
        "found"
    )
    assert found == "[]"
    assert SECRET not in environment_of(caged.warden)


async def test_a_worker_has_no_rights_to_give_up(caged: Lab) -> None:
    status = await caged.value("open('/proc/self/status').read()")
    assert status is not None
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert f"{name}:\\t0000000000000000" in status
    assert "NoNewPrivs:\\t1" in status
    assert "Seccomp:\\t2" in status


async def test_a_worker_of_root_has_a_user_id_of_its_own(caged: Lab) -> None:
    uid = int(await caged.value("import os; os.getuid()") or 0)
    if os.getuid() != 0:
        assert uid == (1000 if level_of(caged) is Level.FULL else os.getuid())
    elif level_of(caged) is Level.FULL:
        assert uid >= 1_000_000
        assert "PermissionError" in await caged.error("import os; os.setuid(0)")
        await caged.value("open('mine', 'w').write('x')")
        assert (caged.workspace / "mine").stat().st_uid == uid
    else:
        assert uid == 0  # without capabilities, behind Landlock; said by the probe


async def test_nothing_leaks_by_descriptor(caged: Lab) -> None:
    found = await caged.value(
        "import os\nfound = []\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    try: found.append(os.readlink('/proc/self/fd/' + fd))\n"
        "    except OSError: pass\n"
        "sorted(x.split(':')[0] for x in found if not x.startswith('/proc/'))"
    )
    assert found is not None
    kinds = set(re.findall(r"'([^']*)'", found))
    assert kinds <= {"/dev/null", "pipe", "socket", "anon_inode"}, found


async def test_everybody_dies_by_a_cell_except_the_kernel(caged: Lab) -> None:
    code = (
        "keep = 1\nimport os, signal, subprocess\nchild = subprocess.Popen(['sleep', '1000'])\n"
        "os.kill(-1, signal.SIGKILL)\nchild.wait()"
    )
    assert await caged.value(code) == "-9"
    if level_of(caged) is Level.FULL:
        await caged.run("os.kill(os.getppid(), signal.SIGKILL)")
    else:
        assert "PermissionError" in await caged.error("os.kill(os.getppid(), signal.SIGKILL)")
    assert await caged.value("keep") == "1"


async def test_shared_memory_is_the_kernels_own(caged: Lab) -> None:
    name = f"klbr-test-{os.getpid()}"
    await caged.run(f"open('/dev/shm/{name}', 'w').write('x')")
    assert name not in os.listdir("/dev/shm")  # noqa: PTH208  # no other thread is needed


async def test_modes_and_owners_of_other_files_stay(caged: Lab, outside: Outside) -> None:
    """Landlock has no rule for them; the interpreter's files can be opened, too."""
    mode = outside.secret.stat().st_mode
    own = await caged.value("import sys, os; os.path.realpath(sys.executable)")
    assert own is not None
    before = os.stat(own.strip("'")).st_mode  # noqa: PTH116  # as the cell has it
    await caged.run(
        f"import os\ntry: os.chmod({str(outside.secret)!r}, 0o777)\nexcept OSError: pass\n"
        f"fd = os.open({own}, os.O_RDONLY)\nos.fchmod(fd, 0o4777)"
    )
    assert outside.secret.stat().st_mode == mode
    assert os.stat(own.strip("'")).st_mode == before  # noqa: PTH116
    await caged.value("import shutil; open('a', 'w').close(); shutil.copy2('a', 'b')")


async def test_files_can_be_moved_between_folders(caged: Lab) -> None:
    code = "import os\nos.makedirs('a/b'); open('a/b/x', 'w').close(); os.rename('a/b/x', 'y')"
    await caged.value(code)
    assert (caged.workspace / "y").exists()


async def test_programs_find_what_they_need(caged: Lab) -> None:
    code = (
        "import subprocess, sys, ssl, tempfile, sqlite3, pwd, socket\n"
        "ran = subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True)\n"
        "shell = subprocess.run('echo $HOME; ls /usr/bin/env; cat /etc/os-release', shell=True, capture_output=True)\n"
        "with tempfile.TemporaryFile() as file: file.write(b'x')\n"
        "(ran.stdout, shell.returncode, socket.gethostbyname('localhost'))"
    )
    assert await caged.value(code) == "('42\\n', 0, '127.0.0.1')"


async def test_a_package_is_installed_into_the_workspace_and_stays(tmp_path: Path) -> None:
    wheel = tmp_path / "workspace" / "tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir(mode=0o700)
    make_wheel(wheel)
    spec, config = make_spec(tmp_path), config_of(Level.FULL)
    async with open_lab(spec, config) as lab:
        result = await lab.run(
            "import subprocess, sys\n"
            f"print(subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', {wheel.name!r}],"
            " capture_output=True, text=True))"
        )
        assert await lab.value("import tiny; tiny.ANSWER") == "42", result.output
    async with open_lab(spec, config) as lab:
        assert await lab.value("import tiny; tiny.__file__") == "'/workspace/.lib/tiny.py'"


def make_wheel(path: Path) -> None:
    import zipfile  # noqa: PLC0415  # only here

    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(
            f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )


@pytest.mark.parametrize("level", SANDBOXES, ids=lambda level: level.value)
async def test_files_of_the_workspace_do_not_stop_a_kernel_from_starting(
    tmp_path: Path, level: Level
) -> None:
    spec = make_spec(tmp_path)
    (spec.workspace / ".lib").mkdir(parents=True)
    for name in ("json.py", "asyncio.py", ".lib/sitecustomize.py", ".lib/os.py"):
        (spec.workspace / name).write_text("raise SystemExit('planted')")
    async with open_lab(spec, config_of(level)) as lab:
        assert await lab.value("import json, asyncio; json.dumps([1])") == "'[1]'"


async def test_a_workspace_changes_hands_between_levels(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    for level in (Level.NONE, Level.FULL, Level.REDUCED, Level.FULL):
        async with open_lab(spec, config_of(level)) as lab:
            await lab.value("open('count', 'a').write('x')")
            assert (await lab.value("len(open('count').read())")) is not None
    assert (spec.workspace / "count").read_text() == "xxxx"
