"""klbr_trio: agents that live for months on one machine and can be trusted.

Everything that a program needs is importable from here; what it means is said where it
lives. `python -m klbr_trio` runs the service. A name is loaded when it is first asked
for, so that a command's help need not load what a service needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from klbr_trio.domain.events import Event
    from klbr_trio.domain.frontier import Frontier
    from klbr_trio.domain.ids import OperationId, SessionId, parse_session_id
    from klbr_trio.domain.session import (
        Draining,
        Executing,
        Ready,
        SessionState,
        Stopped,
        Waiting,
    )
    from klbr_trio.domain.work import (
        Cancelled,
        Claimed,
        Completed,
        ConsequenceMetadata,
        DeadlineWake,
        Failed,
        Impact,
        InputReady,
        MaintenanceReady,
        Pending,
        Provenance,
        Recovery,
        Repair,
        RunCause,
        WorkItem,
        WorkStatus,
    )
    from klbr_trio.errors import (
        AdmissionRejected,
        BadRequest,
        ConfigError,
        DigestMismatch,
        IllegalTransition,
        InvalidSessionId,
        KlbrError,
        RegistryClosed,
        ReleaseRefused,
        SessionStopped,
        SourceKeyConflict,
        StoreForeign,
        StoreLocked,
        StoreTooNew,
        StoreUnavailable,
        TooLarge,
        UnknownSession,
    )
    from klbr_trio.kernel import WorkerConfig
    from klbr_trio.models import LlmClient, ModelConfig, ModelsConfig
    from klbr_trio.release import Release
    from klbr_trio.service.server import serve_listener
    from klbr_trio.sessions.entry import SessionEntry
    from klbr_trio.sessions.groups import ServiceTaskGroup
    from klbr_trio.sessions.ingress import SourceRef, admit_input
    from klbr_trio.sessions.registry import RecoveryObservationPolicy, SessionRegistry
    from klbr_trio.sessions.runner import trigger_session_turn
    from klbr_trio.store import Admission, Claim, Store, check

__all__ = [
    "Admission",
    "AdmissionRejected",
    "BadRequest",
    "Cancelled",
    "Claim",
    "Claimed",
    "Completed",
    "ConfigError",
    "ConsequenceMetadata",
    "DeadlineWake",
    "DigestMismatch",
    "Draining",
    "Event",
    "Executing",
    "Failed",
    "Frontier",
    "IllegalTransition",
    "Impact",
    "InputReady",
    "InvalidSessionId",
    "KlbrError",
    "LlmClient",
    "MaintenanceReady",
    "ModelConfig",
    "ModelsConfig",
    "OperationId",
    "Pending",
    "Provenance",
    "Ready",
    "Recovery",
    "RecoveryObservationPolicy",
    "RegistryClosed",
    "Release",
    "ReleaseRefused",
    "Repair",
    "RunCause",
    "ServiceTaskGroup",
    "SessionEntry",
    "SessionId",
    "SessionRegistry",
    "SessionState",
    "SessionStopped",
    "SourceKeyConflict",
    "SourceRef",
    "Stopped",
    "Store",
    "StoreForeign",
    "StoreLocked",
    "StoreTooNew",
    "StoreUnavailable",
    "TooLarge",
    "UnknownSession",
    "Waiting",
    "WorkItem",
    "WorkStatus",
    "WorkerConfig",
    "admit_input",
    "check",
    "parse_session_id",
    "serve_listener",
    "trigger_session_turn",
]

_HOMES: Final = {
    "Event": "klbr_trio.domain.events",
    "Frontier": "klbr_trio.domain.frontier",
    "OperationId": "klbr_trio.domain.ids",
    "SessionId": "klbr_trio.domain.ids",
    "parse_session_id": "klbr_trio.domain.ids",
    "Draining": "klbr_trio.domain.session",
    "Executing": "klbr_trio.domain.session",
    "Ready": "klbr_trio.domain.session",
    "SessionState": "klbr_trio.domain.session",
    "Stopped": "klbr_trio.domain.session",
    "Waiting": "klbr_trio.domain.session",
    "Cancelled": "klbr_trio.domain.work",
    "Claimed": "klbr_trio.domain.work",
    "Completed": "klbr_trio.domain.work",
    "ConsequenceMetadata": "klbr_trio.domain.work",
    "DeadlineWake": "klbr_trio.domain.work",
    "Failed": "klbr_trio.domain.work",
    "Impact": "klbr_trio.domain.work",
    "InputReady": "klbr_trio.domain.work",
    "MaintenanceReady": "klbr_trio.domain.work",
    "Pending": "klbr_trio.domain.work",
    "Provenance": "klbr_trio.domain.work",
    "Recovery": "klbr_trio.domain.work",
    "Repair": "klbr_trio.domain.work",
    "RunCause": "klbr_trio.domain.work",
    "WorkItem": "klbr_trio.domain.work",
    "WorkStatus": "klbr_trio.domain.work",
    "AdmissionRejected": "klbr_trio.errors",
    "BadRequest": "klbr_trio.errors",
    "ConfigError": "klbr_trio.errors",
    "DigestMismatch": "klbr_trio.errors",
    "IllegalTransition": "klbr_trio.errors",
    "InvalidSessionId": "klbr_trio.errors",
    "KlbrError": "klbr_trio.errors",
    "RegistryClosed": "klbr_trio.errors",
    "ReleaseRefused": "klbr_trio.errors",
    "SessionStopped": "klbr_trio.errors",
    "SourceKeyConflict": "klbr_trio.errors",
    "StoreForeign": "klbr_trio.errors",
    "StoreLocked": "klbr_trio.errors",
    "StoreTooNew": "klbr_trio.errors",
    "StoreUnavailable": "klbr_trio.errors",
    "TooLarge": "klbr_trio.errors",
    "UnknownSession": "klbr_trio.errors",
    "WorkerConfig": "klbr_trio.kernel",
    "LlmClient": "klbr_trio.models",
    "ModelConfig": "klbr_trio.models",
    "ModelsConfig": "klbr_trio.models",
    "Release": "klbr_trio.release",
    "serve_listener": "klbr_trio.service.server",
    "SessionEntry": "klbr_trio.sessions.entry",
    "ServiceTaskGroup": "klbr_trio.sessions.groups",
    "SourceRef": "klbr_trio.sessions.ingress",
    "admit_input": "klbr_trio.sessions.ingress",
    "RecoveryObservationPolicy": "klbr_trio.sessions.registry",
    "SessionRegistry": "klbr_trio.sessions.registry",
    "trigger_session_turn": "klbr_trio.sessions.runner",
    "Admission": "klbr_trio.store",
    "Claim": "klbr_trio.store",
    "Store": "klbr_trio.store",
    "check": "klbr_trio.store",
}
"""The module that each name is loaded from."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names above
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
