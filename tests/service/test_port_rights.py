"""Tokens: the kind that may only look, and what becomes of those that are replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from port_house import CEILING, GOOD, House, open_house
from service_house import Service, open_service

from klbr_trio.service.port.gate import Policy
from klbr_trio.service.rights import KeyRing, Tokens
from klbr_trio.wire.client import TYPES

if TYPE_CHECKING:
    from pathlib import Path

OWNER, READER, LATER = "o" * 32, "r" * 32, "l" * 32
LOOKS = {"subscribe", "unsubscribe", "history", "session_status", "list_sessions", "ping"}
CHANGES = set(TYPES) - LOOKS


def keys() -> KeyRing:
    return KeyRing(Tokens((OWNER,), (READER,)))


async def reported(service: Service, session_id: str) -> list[str]:
    return [event.kind for event in await service.store.history(session_id, 0, 100)]


def fields(kind: str) -> dict[str, object]:
    """Something for each field that the message must have."""
    wanted = [each for each in attrs.fields(TYPES[kind]) if each.default is attrs.NOTHING]
    return {each.name: 1 if "int" in str(each.type) else "x" for each in wanted}


def test_whatever_is_added_changes_something_until_somebody_says_that_it_does_not() -> None:
    assert set(TYPES) > LOOKS
    assert {"send_input", "stop", "reset_kernel"} <= CHANGES


async def test_a_reader_sees_what_the_owner_does_and_changes_nothing(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=keys()) as service:
        async with service.caller(OWNER) as owner, service.caller(READER) as reader:
            assert (await reader.replay("subscribe", "s")).records == ()
            assert (await owner.input("s", "hello"))["type"] == "ack"
            assert (await reader.hear_event("input.admitted"))["payload"]["text"] == "hello"
            for kind in sorted(CHANGES):
                said = await reader.ask(
                    kind,
                    **{**fields(kind), "session_id": "s", "request_id": "r", "role": "admin"},
                )
                assert said["type"] == "error"
                assert said["code"] == "unauthorized"
                assert "read-only" in said["message"]
                assert (said["session_id"], said["request_id"]) == ("s", "r")
            assert (await reader.ask("session_status", session_id="s"))["head_seq"] == 1
            assert (await reader.replay("history", "s", before_seq=2, limit=5)).seqs == (1, 1)
            assert len((await reader.ask("list_sessions"))["sessions"]) == 1
            assert (await reader.ask("ping", timestamp=1))["timestamp"] == 1
        assert await reported(service, "s") == ["input.admitted"]
        assert await service.store.session_state("s") == ("ready", None)


async def test_a_refused_input_names_its_request(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=keys()) as service, service.caller(READER) as reader:
        said = await reader.input("s", client_request_id="k")
        assert (said["code"], said["client_request_id"]) == ("unauthorized", "k")
        assert await service.store.session_state("s") is None


async def test_what_is_malformed_is_told_before_what_is_not_allowed(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=keys()) as service, service.caller(READER) as reader:
        assert (await reader.ask("stop", session_id="../s"))["code"] == "invalid_session_id"
        assert (await reader.ask("approve_everything"))["code"] == "bad_request"


async def test_a_readers_page_reads_the_metrics(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=keys()) as service:
        assert (await service.get("/metrics", token=READER))[0] == 200
        assert (await service.get("/metrics", token=LATER))[0] == 401


async def test_a_replaced_token_ends_its_connections_and_no_others(tmp_path: Path) -> None:
    ring = keys()
    async with open_service(tmp_path, auth=ring) as service:
        async with service.caller(OWNER) as owner, service.caller(READER) as reader:
            assert (await owner.ask("ping"))["type"] == "pong"
            ring.replace(Tokens((LATER,), (READER,)))
            assert await owner.goodbye() == 4401
            assert (await reader.ask("ping"))["type"] == "pong"
            assert (await service.get("/metrics", token=OWNER))[0] == 401
            assert (await service.get("/metrics", token=LATER))[0] == 200
            ring.replace(Tokens((LATER,)))
            assert await reader.goodbye() == 4401


async def test_who_may_only_look_from_now_on_has_to_come_again(tmp_path: Path) -> None:
    ring = keys()
    async with open_service(tmp_path, auth=ring) as service, service.caller(OWNER) as caller:
        assert (await caller.ask("ping"))["type"] == "pong"
        ring.replace(Tokens((LATER,), (OWNER,)))
        assert await caller.goodbye() == 4401


async def test_who_may_do_more_from_now_on_stays(tmp_path: Path) -> None:
    ring = keys()
    async with open_service(tmp_path, auth=ring) as service, service.caller(READER) as caller:
        ring.replace(Tokens((READER,)))
        async with service.caller(READER) as again:
            assert (await again.input("s"))["type"] == "ack"
        assert (await caller.ask("ping"))["type"] == "pong"


async def test_a_ring_that_is_replaced_before_anybody_listens_counts(tmp_path: Path) -> None:
    ring = keys()
    async with open_service(tmp_path, auth=ring) as service:
        ring.replace(Tokens((LATER,)))
        ring.replace(Tokens((OWNER,)))
        async with service.caller(OWNER) as owner:
            assert (await owner.ask("ping"))["type"] == "pong"


async def test_a_stalled_client_of_a_replaced_token_is_cut() -> None:
    """It neither reads nor answers the goodbye; its place is free in the end."""
    async with open_house() as house, house.socket() as stalled:
        await stalled.say("here")
        assert await stalled.text() == "here"
        house.port.enforce(attrs.evolve(house.port.policy, tokens=("another",)))
        await house.at_rest()
        assert await stalled.close_code() == 4401


async def _is_let_in(house: House, token: str) -> int:
    return (await house.ask(house.request("/metrics", token=token))).status


async def test_a_socket_between_its_head_and_its_opening_is_judged_again() -> None:
    async with open_house() as house:
        policy = house.port.policy
        async with house.connect() as client:
            await client.send(house.request(upgrade=True))
            house.port.enforce(attrs.evolve(policy, tokens=("another",)))
            with trio.fail_after(CEILING):
                head = await client.head()
                if head.status == 101:
                    assert await client.close_code() == 4401
                else:
                    assert head.status == 401
        assert await _is_let_in(house, GOOD) == 401
        assert await _is_let_in(house, "another") == 200


def test_no_token_is_ever_shown() -> None:
    ring = keys()
    policy = Policy(hosts=frozenset(), tokens=ring.tokens.full, read_tokens=ring.tokens.read_only)
    for text in (repr(ring), repr(policy), repr(ring.tokens)):
        assert OWNER not in text
        assert READER not in text


def test_an_empty_read_only_token_can_not_be_configured() -> None:
    with pytest.raises(ValueError, match="empty token"):
        Policy(hosts=frozenset(), tokens=(OWNER,), read_tokens=("",))
