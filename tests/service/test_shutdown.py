"""The end of a service: last words, goodbyes, readiness, and a registry that is closed for good."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio_websocket
from fakes.provider import chunk, drip, hang, open_provider, sse
from service_house import (
    CEILING,
    ROOT,
    behaviour,
    model_at,
    nobody_writes,
    open_service,
)

from klbr_trio import (
    ConfigError,
    RegistryClosed,
    ServiceTaskGroup,
    SessionRegistry,
    Store,
    WorkerConfig,
    serve_listener,
)

if TYPE_CHECKING:
    from pathlib import Path

    from service_house import Caller, Service

RESTARTING = 1012


async def is_closed_for_good(service: Service) -> None:
    with trio.fail_after(CEILING):
        await service.over.wait()
    assert service.registry.closed.is_set()
    with pytest.raises(RegistryClosed):
        await service.registry.get_or_open("s", None)
    with pytest.raises(OSError, match=r"connect"):
        await trio.open_tcp_stream(*service.address)


async def test_clients_hear_the_last_words_and_a_goodbye(tmp_path: Path) -> None:
    async with open_provider([hang()]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller, service.caller() as idle:
                await caller.replay("subscribe", "s")
                await caller.input("s", "work")
                await provider.wait_requests(1)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(service.registry.shutdown_all)
                    interrupted = await caller.hear_event("turn.interrupted")
                    assert interrupted["payload"]["why"] == "shutdown"
                    assert await caller.goodbye() == RESTARTING
                    assert await idle.goodbye() == RESTARTING
                await is_closed_for_good(service)


async def test_a_cancelled_service_drains_and_the_cancel_goes_on(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "klbr.sqlite") as store:
        config = WorkerConfig.source_tree(ROOT)
        async with SessionRegistry.open(store, config) as registry:
            ended: list[BaseException] = []

            async def serve(task_status: trio.TaskStatus[tuple[str, int]]) -> None:
                try:
                    await serve_listener(registry=registry, task_status=task_status)
                except trio.Cancelled as exc:
                    ended.append(exc)
                    raise

            async with trio.open_nursery() as nursery:
                await nursery.start(serve)
                nursery.cancel_scope.cancel()
            assert len(ended) == 1, "Cancelled itself, not a group of it"
            assert registry.closed.is_set()


async def test_shutdown_while_everybody_asks(tmp_path: Path) -> None:
    """Answers are given or the connection ends with 1012; nothing is half done."""
    async with open_service(tmp_path) as service:
        ends: list[int] = []

        async def ask(name: str) -> None:
            async with service.caller() as caller:
                acked = []
                number = 0
                while await sent(caller, name, number):
                    number += 1
                    answer = await caller.hear_or_end()
                    if answer is None:
                        break
                    if answer["type"] == "ack":
                        acked.append(answer["seq"])
                    else:
                        assert answer["code"] in {"no_model_configured", "admission_rejected"}
                ends.append(await caller.goodbye())
                events = await service.store.history(name, 0, 20_000)
                assert set(acked) <= {event.seq for event in events}

        with trio.fail_after(CEILING):
            async with trio.open_nursery() as nursery:
                for name in ("a", "b", "c"):
                    nursery.start_soon(ask, name)
                for name in ("a", "b", "c"):
                    while service.store.head(name) < 20:
                        await service.store.ticket(name).wait()
                await service.registry.shutdown_all()
        assert ends == [RESTARTING] * 3
        await is_closed_for_good(service)


async def sent(caller: Caller, name: str, number: int) -> bool:
    try:
        await caller.say("send_input", session_id=name, source="t", text=str(number))
    except trio_websocket.ConnectionClosed:
        return False
    return True


async def test_while_draining_the_turn_ends_and_nothing_new_begins(tmp_path: Path) -> None:
    go_on = trio.Event()
    answer = drip(
        sse(chunk({"content": "thinking"}), done=False),
        go_on,
        sse(chunk({"content": " done"}), chunk(finish="stop")),
    )
    async with open_provider([answer]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url), drain_seconds=15) as service:
            async with service.caller() as caller:
                await caller.replay("subscribe", "s")
                await caller.input("s", "work", client_request_id="k")
                await caller.hear_type("live_chunk")
                assert await service.get("/readyz") == (200, "ok\n")
                service.scope.cancel()
                with trio.fail_after(CEILING):
                    await service.registry.closing.wait()
                assert await service.get("/readyz") == (503, "draining\n")
                assert (await service.get("/healthz"))[0] == 200
                assert await refused_socket(service) == 503
                for session_id in ("s", "new"):
                    refused = await answer_to(caller, session_id, "more")
                    assert refused["code"] == "admission_rejected"
                    assert "cannot admit input" in refused["message"]
                again = await answer_to(caller, "s", "work", client_request_id="k")
                assert (again["type"], again["duplicate"]) == ("ack", True)
                await caller.say("session_status", session_id="s")
                assert (await caller.hear_type("session_status"))["state"] == "draining"
                await caller.say("reset_kernel", session_id="s")
                assert (await caller.hear_type("operator_ack"))["success"] is False
                go_on.set()
                await caller.hear_event("turn.completed")
                assert await caller.goodbye() == RESTARTING
                await is_closed_for_good(service)


async def answer_to(caller: Caller, session_id: str, text: str, **fields: object) -> dict[str, Any]:
    await caller.say("send_input", session_id=session_id, source="tests", text=text, **fields)
    return await caller.hear_type("ack", "error")


async def refused_socket(service: Service) -> int:
    """The status that an upgrade is answered with."""
    request = (
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{service.address[1]}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with trio.fail_after(CEILING):
        async with await trio.open_tcp_stream(*service.address) as stream:
            await stream.send_all(request.encode())
            data = bytes(await stream.receive_some())
    return int(data.split()[1])


async def test_the_grace_has_an_end(tmp_path: Path) -> None:
    async with open_provider([hang()]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url), drain_seconds=0.2) as service:
            async with service.caller() as caller:
                await caller.replay("subscribe", "s")
                await caller.input("s", "work")
                await provider.wait_requests(1)
                service.scope.cancel()
                interrupted = await caller.hear_event("turn.interrupted")
                assert interrupted["payload"]["why"] == "shutdown"
                assert await caller.goodbye() == RESTARTING
                await is_closed_for_good(service)


async def test_two_shutdowns_at_once_both_wait(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        with trio.fail_after(CEILING):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(service.registry.shutdown_all)
            assert service.registry.closed.is_set()
            await service.registry.shutdown_all()
        await is_closed_for_good(service)


async def test_clients_that_do_not_read_are_cut_in_two_seconds(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        await service.notes("s", 400, text="x" * 8000)
        async with contextlib.AsyncExitStack() as stack:
            deaf = [
                await stack.enter_async_context(service.raw(receive_buffer=4096)) for _ in range(5)
            ]
            good = await stack.enter_async_context(service.caller())
            for client in deaf:
                await client.say('{"type":"subscribe","session_id":"s","after_seq":1}')
                assert json.loads(await client.text())["type"] == "sync_started"
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(service.registry.shutdown_all)
                assert await good.goodbye() == RESTARTING
                assert trio.current_time() - began < 1, "one deaf client delays nobody's goodbye"
            assert 0.9 < trio.current_time() - began < 4
            await is_closed_for_good(service)


async def test_an_input_that_is_being_stored_is_acked_before_the_goodbye(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        async with trio.open_nursery() as nursery:
            with nobody_writes(tmp_path):
                await caller.say("send_input", session_id="s", source="t", text="just in time")
                assert await caller.ask("ping") == {"type": "pong"}
                nursery.start_soon(service.registry.shutdown_all)
                await service.registry.leave(ServiceTaskGroup.CLIENT).wait()
            assert (await caller.hear())["type"] == "ack"
            assert await caller.goodbye() == RESTARTING
        assert service.store.head("s") == 1


async def test_a_client_that_never_answers_a_goodbye_is_cut(tmp_path: Path) -> None:
    """It has a request in flight besides, so that its goodbye comes late."""
    async with open_service(tmp_path) as service, service.raw() as client:
        with nobody_writes(tmp_path):
            await client.say('{"type":"send_input","session_id":"s","source":"t","text":"x"}')
            await client.say('{"type":"ping"}')
            assert json.loads(await client.text()) == {"type": "pong"}
            began = trio.current_time()
            await service.registry.shutdown_all()
            assert trio.current_time() - began < 2.9, "a second of patience and two of goodbye"
            assert await client.close_code() == RESTARTING


async def test_those_who_come_at_the_last_moment_hurt_nobody(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        statuses: list[int] = []
        enough = trio.Event()

        async def knock() -> None:
            while True:
                try:
                    statuses.append(await refused_socket(service))
                    if len(statuses) == 20:
                        enough.set()
                except (OSError, IndexError, trio.BrokenResourceError):
                    if service.over.is_set():
                        return
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(knock)
            await enough.wait()
            await service.registry.shutdown_all()
            await is_closed_for_good(service)
        assert set(statuses) <= {101, 503}


async def test_ready_means_recovered_and_able_to_write(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "klbr.sqlite", busy_s=0.1) as store:
        with nobody_writes(tmp_path):
            async with open_service(tmp_path, store=store) as service:
                assert await service.get("/readyz") == (503, "recovering\n")
                assert (await service.get("/healthz"))[0] == 200
                async with service.caller() as caller:
                    assert await caller.ask("ping") == {"type": "pong"}
        async with open_service(tmp_path, store=store) as service, service.caller() as caller:
            with trio.fail_after(CEILING):
                await service.registry.recovered.wait()
            assert await service.get("/readyz") == (200, "ok\n")
            with nobody_writes(tmp_path):
                busy = await caller.input("s", request_id="r", client_request_id="k")
                assert (busy["type"], busy["code"]) == ("error", "busy")
                assert (busy["session_id"], busy["request_id"]) == ("s", "r")
                assert busy["client_request_id"] == "k"
                assert await service.get("/readyz") == (503, "unable to write\n")
                assert service.store.row("s") is None
                window = await caller.replay("subscribe", "s")
                assert window.seqs == (1, 0), "reading goes on"
            assert (await caller.input("s", client_request_id="k"))["duplicate"] is False
            assert await service.get("/readyz") == (200, "ok\n")


async def test_a_service_needs_an_open_registry_and_a_free_address(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "klbr.sqlite") as store:
        async with SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry:
            with socket.socket() as held:
                held.bind(("127.0.0.1", 0))
                held.listen()
                with pytest.raises(ConfigError, match="can't listen on"):
                    await serve_listener(registry=registry, port=held.getsockname()[1])
            llm = model_at("http://127.0.0.1:1/v1")
            with pytest.raises(ConfigError, match="needs a release"):
                await serve_listener(registry=registry, llm=llm)
            assert not registry.closing.is_set(), "it may be tried again"
            async with trio.open_nursery() as nursery:
                address: tuple[str, int] = await nursery.start(serve, registry, tmp_path)
                assert address[1] > 0
                await registry.shutdown_all()
            with pytest.raises(RegistryClosed):
                await serve_listener(registry=registry)


async def serve(
    registry: SessionRegistry, path: Path, task_status: trio.TaskStatus[tuple[str, int]]
) -> None:
    await serve_listener(
        registry=registry, release=behaviour(path / "releases"), task_status=task_status
    )


async def test_leaving_the_registry_ends_its_service(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "klbr.sqlite") as store, trio.open_nursery() as nursery:
        with trio.fail_after(CEILING):
            async with SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry:
                address: tuple[str, int] = await nursery.start(serve, registry, tmp_path)
        assert registry.closed.is_set()
        with pytest.raises(OSError, match=r"connect"):
            await trio.open_tcp_stream(*address)
