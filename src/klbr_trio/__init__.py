"""klbr_trio: agents that live for months on one machine and can be trusted.

Everything that a program needs is importable from here; what it means is said where it
lives. `python -m klbr_trio` runs the service.
"""

from __future__ import annotations

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
