"""One record of each kind as it is stored. These texts are on people's disks: never edit one."""

from __future__ import annotations

from typing import Final

from klbr_trio.domain import events, work

GOLDEN: Final[tuple[tuple[events.Body, str], ...]] = (
    (
        events.InputAdmitted("cli", "hi\x00é", "k-1", "work-input-1"),
        '{"source":"cli","text":"hi\\u0000é","client_request_id":"k-1","work_item_id":"work-input-1"}',
    ),
    (
        events.TurnStarted(
            "op-1",
            (
                work.Recovery("op-0"),
                work.InputReady(1),
                work.DeadlineWake(90),
                work.Repair("op-9"),
                work.MaintenanceReady("m-1", "tidy up"),
            ),
            ("work-input-1", "m-1"),
            "sha256:ab",
            None,
        ),
        (
            '{"attempt_id":"op-1","causes":[{"type":"recovery","attempt_id":"op-0"},'
            '{"type":"input_ready","seq":1},{"type":"deadline_wake","wake_at_ms":90},'
            '{"type":"repair","of":"op-9"},'
            '{"type":"maintenance_ready","item_id":"m-1","purpose":"tidy up"}],'
            '"work_items":["work-input-1","m-1"],"release":"sha256:ab","model":null}'
        ),
    ),
    (
        events.ReplyReceived("op-1", 1, "m", "tool_calls", {"total_tokens": 7}, {"a": [1, None]}),
        (
            '{"attempt_id":"op-1","step":1,"model":"m","finish":"tool_calls",'
            '"usage":{"total_tokens":7},"opaque":{"a":[1,null]}}'
        ),
    ),
    (
        events.Scratchpad("hmm", "op-1", 1),
        '{"text":"hmm","attempt_id":"op-1","step":1}',
    ),
    (
        events.CellRequested("op-1", 1, "c-1", "1 + 1"),
        '{"attempt_id":"op-1","step":1,"call_id":"c-1","code":"1 + 1"}',
    ),
    (
        events.CellRequested("op-1", 1, "c-2", None, "{broken"),
        '{"attempt_id":"op-1","step":1,"call_id":"c-2","code":null,"raw":"{broken"}',
    ),
    (
        events.CellFinished(
            "op-1",
            1,
            "c-1",
            ok=True,
            output="",
            value="2",
            error=None,
            truncated=False,
            duration_ms=3,
        ),
        (
            '{"attempt_id":"op-1","step":1,"call_id":"c-1","ok":true,"output":"","value":"2",'
            '"error":null,"truncated":false,"duration_ms":3}'
        ),
    ),
    (
        events.LocalSent("hello", "op-1", 1, "c-1"),
        '{"text":"hello","attempt_id":"op-1","step":1,"call_id":"c-1"}',
    ),
    (
        events.TurnCompleted("op-1", "waiting", None),
        '{"attempt_id":"op-1","outcome":"waiting","usage":null}',
    ),
    (
        events.TurnFailed("turn_failed", "op-1", "bound_time", "too slow", retryable=False),
        (
            '{"type":"turn_failed","attempt_id":"op-1","code":"bound_time","message":"too slow",'
            '"retryable":false}'
        ),
    ),
    (
        events.TurnInterrupted("op-1", "crash", ("work-input-1",)),
        '{"attempt_id":"op-1","why":"crash","failed":["work-input-1"]}',
    ),
    (
        events.SessionWaiting(90, "later", None, events.Retry(30, 2)),
        '{"wake_at_ms":90,"reason":"later","receipt":null,"retry":{"of_ms":30,"n":2}}',
    ),
    (
        events.SessionWaiting(None, None, "r-1"),
        '{"wake_at_ms":null,"reason":null,"receipt":"r-1","retry":null}',
    ),
    (events.SessionWoken(90, 4), '{"wake_at_ms":90,"late_ms":4}'),
    (events.SessionStopped(), "{}"),
    (events.SessionReopened(2), '{"hook_epoch":2}'),
    (events.KernelReset("died", 3), '{"why":"died","hook_epoch":3}'),
    (
        events.FrontierInstalled(1, 4, "so far", "folder"),
        '{"epoch":1,"drained_through_seq":4,"summary":"so far","derived_by":"folder"}',
    ),
    (events.Note("my.kind", {"b": 1, "a": None}), '{"b":1,"a":null}'),
)
