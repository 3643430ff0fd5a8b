"""The gate's table. `HOST` and `GOOD` are right; each case spoils something."""

from __future__ import annotations

import pytest

from klbr_trio.service.port.gate import (
    Decision,
    Policy,
    Refuse,
    Serve,
    Upgrade,
    bound_hosts,
    decide,
    loopback_hosts,
    own_origins,
)
from klbr_trio.service.port.head import Head

GOOD = "0123456789abcdef0123456789abcdef"
HOST = "127.0.0.1:8765"
HOSTS = loopback_hosts(8765)
POLICY = Policy(hosts=HOSTS, origins=own_origins(HOSTS), tokens=(GOOD, "older"))
HANDSHAKE = (
    ("upgrade", "websocket"),
    ("connection", "Upgrade"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
)
BEARER = (("authorization", f"Bearer {GOOD}"),)
Pairs = tuple[tuple[str, str], ...]


def head(
    path: str = "/",
    *,
    host: str | None = HOST,
    method: str = "GET",
    version: str = "1.1",
    headers: Pairs = (),
) -> Head:
    hosts: Pairs = () if host is None else (("host", host),)
    return Head(method=method, path=path, http_version=version, headers=hosts + headers)


def status(decision: Decision) -> int:
    assert isinstance(decision, Refuse), decision
    return decision.response.status


def without(name: str) -> Pairs:
    return tuple(pair for pair in HANDSHAKE if pair[0] != name)


def test_a_handshake_with_the_token_is_accepted() -> None:
    decision = decide(head(headers=HANDSHAKE + BEARER), POLICY)
    assert decision == Upgrade(key="dGhlIHNhbXBsZSBub25jZQ==", subprotocol=None, authorised=True)


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_each_name_of_the_loopback_is_a_host(host: str) -> None:
    assert decide(head("/healthz", host=host), POLICY) == Serve("/healthz")


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/nowhere"])
@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example:8765",
        "localhost.evil.com:8765",
        "127.evil.com:8765",
        "127.0.0.1.nip.io:8765",
        "0.0.0.0:8765",
        "[::ffff:127.0.0.1]:8765",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:8766",
        "127.0.0.1.:8765",
        "localhost.:8765",
        "LOCALHOST:8765",
        "user@127.0.0.1:8765",
        "2130706433:8765",
        "127.1:8765",
        "xn--a:8765",
    ],
)
def test_a_foreign_host_is_421_everywhere_whatever_else_is_right(
    host: str | None, path: str
) -> None:
    assert status(decide(head(path, host=host, headers=HANDSHAKE + BEARER), POLICY)) == 421


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/nowhere"])
@pytest.mark.parametrize(
    "origins",
    [
        ("https://evil.example",),
        ("null",),
        ("",),
        (f"http://{HOST}", f"http://{HOST}"),
        (f"http://{HOST}.evil.com",),
        ("http://localhost.evil:8765",),
        ("http://127.0.0.1:8766",),
        (f"https://{HOST}",),
        (f"HTTP://{HOST}",),
        (f"http://{HOST}/",),
        (f"http://{HOST}, http://evil.example",),
    ],
)
def test_a_foreign_origin_is_403_everywhere(origins: tuple[str, ...], path: str) -> None:
    headers = HANDSHAKE + BEARER + tuple(("origin", origin) for origin in origins)
    assert status(decide(head(path, headers=headers), POLICY)) == 403


def test_a_page_of_our_own_may_connect() -> None:
    headers = (*HANDSHAKE, *BEARER, ("origin", "http://localhost:8765"))
    assert isinstance(decide(head(headers=headers), POLICY), Upgrade)


@pytest.mark.parametrize(
    ("path", "method", "expected"),
    [
        ("/nowhere", "GET", 404),
        ("/nowhere", "POST", 404),
        ("//", "GET", 404),
        ("/healthz/", "GET", 404),
        ("/%68ealthz", "GET", 404),
        ("/", "POST", 405),
        ("/", "OPTIONS", 405),
        ("/healthz", "HEAD", 405),
        ("/metrics", "DELETE", 405),
    ],
)
def test_path_and_method_come_before_the_token(path: str, method: str, expected: int) -> None:
    assert status(decide(head(path, method=method), POLICY)) == expected


def test_health_needs_no_token_and_metrics_do() -> None:
    assert decide(head("/healthz"), POLICY) == Serve("/healthz")
    assert decide(head("/readyz"), POLICY) == Serve("/readyz")
    assert status(decide(head("/metrics"), POLICY)) == 401
    assert decide(head("/metrics", headers=BEARER), POLICY) == Serve("/metrics")


@pytest.mark.parametrize("handshake", [(), HANDSHAKE])
@pytest.mark.parametrize("path", ["/", "/metrics"])
@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("authorization", "Bearer"),),
        (("authorization", "Bearer "),),
        (("authorization", f"Bearer {GOOD[:-1]}"),),
        (("authorization", f"Bearer {GOOD}x"),),
        (("authorization", f"Bearer  {GOOD}"),),
        (("authorization", f"Basic {GOOD}"),),
        (("authorization", GOOD),),
        (("authorization", "Bearer ' OR '1'='1"),),
        (*BEARER, *BEARER),
        (("sec-websocket-protocol", f"klbr.token.{GOOD}"),),
        (("authorization", "Bearer no"), ("sec-websocket-protocol", f"klbr.v2, klbr.token.{GOOD}")),
    ],
)
def test_without_the_token_every_guarded_route_is_401(
    headers: Pairs, path: str, handshake: Pairs
) -> None:
    assert status(decide(head(path, headers=handshake + headers), POLICY)) == 401


def test_either_token_opens_and_the_scheme_may_be_in_any_case() -> None:
    for value in (f"bearer {GOOD}", "Bearer older"):
        assert decide(head("/metrics", headers=(("authorization", value),)), POLICY) == Serve(
            "/metrics"
        )


@pytest.mark.parametrize(
    ("offer", "authorised"),
    [
        (f"klbr.v2, klbr.token.{GOOD}", True),
        (f"klbr.token.{GOOD},klbr.v2", True),
        ("klbr.v2, klbr.token.wrong", False),
        ("klbr.v2, klbr.token.", False),
        (f"klbr.v2, klbr.token.{GOOD}, klbr.token.{GOOD}", False),
    ],
)
def test_a_token_in_a_subprotocol_is_answered_in_the_socket(offer: str, authorised: bool) -> None:
    decision = decide(head(headers=(*HANDSHAKE, ("sec-websocket-protocol", offer))), POLICY)
    assert isinstance(decision, Upgrade)
    assert decision.subprotocol == "klbr.v2"
    assert decision.authorised is authorised


def test_without_tokens_nothing_is_asked_but_host_and_origin_still_are() -> None:
    policy = Policy(hosts=HOSTS, tokens=None)
    assert isinstance(decide(head(headers=HANDSHAKE), policy), Upgrade)
    assert decide(head("/metrics"), policy) == Serve("/metrics")
    assert status(decide(head("/metrics", host="evil:8765"), policy)) == 421
    headers = (("origin", "https://evil.example"),)
    assert status(decide(head("/metrics", headers=headers), policy)) == 403


def test_no_tokens_at_all_let_nobody_in() -> None:
    policy = Policy(hosts=HOSTS, tokens=())
    assert status(decide(head("/metrics", headers=BEARER), policy)) == 401


def test_an_empty_token_can_not_be_configured() -> None:
    with pytest.raises(ValueError, match="empty"):
        Policy(hosts=HOSTS, tokens=("good", ""))


def test_a_policy_does_not_show_its_tokens() -> None:
    assert GOOD not in repr(POLICY)


@pytest.mark.parametrize(
    ("broken", "version"),
    [
        (without("connection"), "1.1"),
        ((*without("connection"), ("connection", "close")), "1.1"),
        (without("sec-websocket-key"), "1.1"),
        ((*without("sec-websocket-key"), ("sec-websocket-key", "")), "1.1"),
        ((*without("sec-websocket-key"), ("sec-websocket-key", "c2hvcnQ=")), "1.1"),
        ((*without("sec-websocket-key"), ("sec-websocket-key", "not base64 at all!!!")), "1.1"),
        ((*HANDSHAKE, ("content-length", "5")), "1.1"),
        ((*HANDSHAKE, ("transfer-encoding", "chunked")), "1.1"),
        (HANDSHAKE, "1.0"),
    ],
)
def test_a_malformed_handshake_is_400_for_the_owner_and_401_for_others(
    broken: Pairs, version: str
) -> None:
    assert status(decide(head(headers=broken + BEARER, version=version), POLICY)) == 400
    assert status(decide(head(headers=broken, version=version), POLICY)) == 401


@pytest.mark.parametrize("value", [None, "8", "13, 8"])
def test_another_version_of_websocket_is_426(value: str | None) -> None:
    versions: Pairs = () if value is None else (("sec-websocket-version", value),)
    headers = without("sec-websocket-version") + versions + BEARER
    decision = decide(head(headers=headers), POLICY)
    assert status(decision) == 426
    assert isinstance(decision, Refuse)
    assert ("Sec-WebSocket-Version", "13") in decision.response.headers


def test_a_plain_get_of_the_socket_is_told_what_is_there() -> None:
    assert status(decide(head(headers=BEARER), POLICY)) == 426


def test_files_at_the_root_stand_beside_the_socket() -> None:
    policy = Policy(hosts=HOSTS, tokens=(GOOD,), open_paths=frozenset({"/"}))
    assert decide(head(), policy) == Serve("/")
    assert status(decide(head(headers=HANDSHAKE), policy)) == 401
    assert isinstance(decide(head(headers=HANDSHAKE + BEARER), policy), Upgrade)


def test_an_encoded_body_is_415() -> None:
    headers = (*BEARER, ("content-encoding", "gzip"))
    assert status(decide(head("/metrics", headers=headers), POLICY)) == 415


def test_hosts_follow_the_bound_addresses() -> None:
    assert bound_hosts([("127.0.0.1", 80)]) == {"127.0.0.1", "localhost", "[::1]"}
    assert bound_hosts([("192.168.1.5", 7)]) == loopback_hosts(7) | {"192.168.1.5:7"}
    assert bound_hosts([("0.0.0.0", 7), ("::", 7)]) == loopback_hosts(7)
