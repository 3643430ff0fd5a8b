"""Beyond loopback, and behind the kernel's walls: what others reach of the process, and as whom."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import trio
from e2e_house import CEILING_S, DEMO, House, environment, klbr, wait_until
from fakes.provider import Request, Scripted, call_reply, open_provider

if TYPE_CHECKING:
    from pathlib import Path

SPY = """
import os, socket
from pathlib import Path
from klbr import local, runtime

def tried(what):
    try:
        return what()
    except BaseException as exc:
        return f"{type(exc).__name__}"

def spoken(family, place):
    with socket.socket(family) as one:
        one.settimeout(5)
        one.connect(place)
        one.sendall(b"GET / HTTP/1.1\\r\\nHost: HOST\\r\\n\\r\\n")
        return one.recv(100).decode()[:12]

found = {
    "environ": " ".join(f"{k}={v}" for k, v in os.environ.items()),
    "argv": tried(lambda: Path("/proc/self/cmdline").read_text()),
    "descriptors": tried(lambda: [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                                  if os.path.lexists(f"/proc/self/fd/{n}")]),
    "cwd": os.getcwd(),
    "parent": tried(lambda: Path("/proc/DAEMON/environ").read_text()),
    "memory": tried(lambda: open("/proc/DAEMON/mem", "rb").read(1)),
    "token": tried(lambda: Path("STATE/token").read_text()),
    "readers": tried(lambda: Path("STATE/read-tokens").read_text()),
    "store": tried(lambda: Path("STATE/klbr.sqlite").read_bytes()[:15]),
    "tcp": tried(lambda: spoken(socket.AF_INET, ("127.0.0.1", PORT))),
    "unix": tried(lambda: spoken(socket.AF_UNIX, "STATE/klbr.sock")),
}
import json
await local.send(json.dumps(found, default=repr))
await runtime.done()
"""


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", "-keyout", key, "-out", cert,
         "-addext", names],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o600)
    return cert, key


def test_other_machines_come_in_by_tls_and_token(
    house: House, papers: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = papers
    tls = ("--tls-cert", str(cert), "--tls-key", str(key), "--names", "agents.example")
    house.launch(*DEMO, *tls, listen="0.0.0.0:0")
    house.ready()
    url = str(house.service["url"])
    assert url.startswith("https://127.0.0.1:")
    wait_until(lambda: "EXPOSED on 0.0.0.0" in house.log.read_text(), "the warning")
    assert house.klbr("send", "s", "what is 2+2").out == "2+2 = 4\n", "the unix socket speaks plain"
    file = tmp_path / "token"
    file.write_text(house.token)
    file.chmod(0o600)
    by_url = ("--url", url, "--token-file", str(file))
    trusting = {"SSL_CERT_FILE": str(cert)}
    assert house.klbr("send", "s", "what is 3+3", *by_url, **trusting).out == "3+3 = 6\n"
    distrusting = house.klbr("status", *by_url)
    assert distrusting.code == 7
    assert "is not trusted" in distrusting.only_line
    assert house.token not in distrusting.err
    port = int(url.rpartition(":")[2])
    assert spoken(port, cert, f"agents.example:{port}") == b"HTTP/1.1 200 OK"
    assert spoken(port, cert, f"0.0.0.0:{port}").startswith(b"HTTP/1.1 421 ")
    assert house.stop() == 0
    [warned] = [line for line in house.logged if line.get("action") == "exposed"]
    assert warned["level"] == "WARNING"
    assert "whoever has the token" in warned["message"]


def spoken(port: int, cert: Path, host: str) -> bytes:
    context = ssl.create_default_context(cafile=cert)
    plain = socket.create_connection(("127.0.0.1", port), timeout=CEILING_S)
    with closing(context.wrap_socket(plain, server_hostname="localhost")) as client:
        client.sendall(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return client.recv(65_536).split(b"\r\n")[0]


def test_a_key_that_others_know_is_refused(papers: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = papers
    known = tmp_path / "known.pem"
    known.write_bytes(key.read_bytes())
    known.chmod(0o640)
    options = ("--tls-cert", str(cert), "--tls-key", str(known))
    refused = klbr("serve", "--state", str(tmp_path / "s"), "--listen", "127.0.0.1:0", *options)
    assert refused.code == 78
    assert "open to other users" in refused.only_line


async def test_code_in_a_kernel_reaches_nothing_of_the_service(house: House) -> None:
    """The kernel is started without a token, and behind its walls it can't read one."""

    def look_around(_: Request) -> Scripted:
        at = str(house.service["url"]).removeprefix("http://")
        code = SPY.replace("STATE", str(house.state)).replace("DAEMON", str(house.pid))
        return call_reply(code.replace("HOST", at).replace("PORT", at.partition(":")[2]))

    async with open_provider([look_around]) as provider:
        house.launch("--model", "m", OPENAI_API_KEY="sk-marker", OPENAI_BASE_URL=provider.url)
        await trio.to_thread.run_sync(house.ready)
        reader = await trio.to_thread.run_sync(house.klbr, "token", "new", "--read-only")
        done = await trio.to_thread.run_sync(house.klbr, "send", "s", "look around", "--json")
        [said] = done.json["speech"]
        secrets = (house.token, reader.out.strip(), "sk-marker")
        assert await trio.to_thread.run_sync(house.stop) == 0
    found = json.loads(said)
    assert [name for name in found if any(secret in str(found[name]) for secret in secrets)] == []
    refused = {"PermissionError", "FileNotFoundError", "ProcessLookupError", "NotADirectoryError"}
    for name in ("parent", "memory", "token", "readers", "store"):
        assert found[name] in refused, (name, found[name])
    for name in ("tcp", "unix"):
        assert found[name] == "HTTP/1.1 401" or found[name].endswith("Error"), found[name]
    assert not any("klbr.sqlite" in str(name) for name in found["descriptors"])


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    code = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard));"
        "from klbr_trio.daemon.descriptors import ENOUGH, take_descriptors;"
        "soft = take_descriptors();"
        "assert soft == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256;"
        "assert soft == min(hard, ENOUGH), (soft, hard)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), timeout=CEILING_S)
