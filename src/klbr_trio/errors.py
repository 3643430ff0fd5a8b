"""Every error this package raises on purpose.

```
KlbrError
├─ RequestError(code)          what a client asked for cannot be; the text is safe to show
│  ├─ BadRequest               a frame or argument does not have the stated shape
│  ├─ InvalidSessionId · UnknownSession
│  ├─ AdmissionRejected        the session is stopped or draining
│  ├─ SourceKeyConflict        one source key, two texts
│  ├─ TooLarge
│  └─ Busy                     try again later
├─ SessionStopped · RegistryClosed · IllegalTransition
├─ StoreError
│  ├─ StoreUnavailable         disk full, I/O error, or locked for too long: nothing was written
│  ├─ StoreLocked · StoreTooNew · StoreForeign       the file can't be opened, and why
│  ├─ ClaimLost                the attempt no longer holds its claim; an expected race
│  └─ StoreBroken              the file is corrupt: the process ends
├─ ModelError
│  ├─ ModelUnavailable · ModelRefused · ContextTooLong
├─ KernelError
│  └─ KernelDied · KernelStartFailed · CallRefused
├─ ReleaseError
│  └─ ReleaseRefused · DigestMismatch
└─ ConfigError                 a setting is missing or wrong
```

An `AssertionError`, `TypeError` or `KeyError` is a bug and never becomes one of these.
"""

from __future__ import annotations

from typing import ClassVar


class KlbrError(Exception):
    """The base of every error that this package raises on purpose."""


class RequestError(KlbrError):
    """What a client asked for cannot be; the message may be shown to it."""

    code: ClassVar[str] = "bad_request"


class BadRequest(RequestError):
    """A frame or an argument does not have the stated shape; the message names the field."""

    code = "bad_request"


class InvalidSessionId(RequestError, ValueError):
    """The text is not a session id."""

    code = "invalid_session_id"


class UnknownSession(RequestError):
    """No session of that id was ever made in this store."""

    code = "unknown_session"


class AdmissionRejected(RequestError):
    """The session is stopped or draining; nothing was stored."""

    code = "admission_rejected"


class SourceKeyConflict(RequestError):
    """The source key was used before with another text; nothing was stored."""

    code = "conflict"


class TooLarge(RequestError):
    """A text or payload is over its bound; nothing was stored."""

    code = "too_large"


class Busy(RequestError):
    """The service can't take this at the moment; nothing was stored."""

    code = "busy"


class SessionStopped(KlbrError):
    """The operator stopped the session; only the operator's reset reopens it."""


class RegistryClosed(KlbrError):
    """The registry has been shut down; it starts nothing any more."""


class IllegalTransition(KlbrError):
    """A session or work item was asked for a move that its state does not have."""


class StoreError(KlbrError):
    """The base of what the store raises."""


class StoreUnavailable(StoreError):
    """The store can't write at the moment (disk full, I/O error, locked); nothing was written."""


class StoreLocked(StoreError):
    """Another process owns this store; the message names it."""


class StoreTooNew(StoreError):
    """The store was made by a newer version; it was not touched."""


class StoreForeign(StoreError):
    """The path is not a store of ours, or can't be opened; it was not touched."""


class StoreBroken(StoreError):
    """The store's file is corrupt; the process must end."""


class ClaimLost(StoreError):
    """The attempt has ended or never held the claim; the write was refused."""


class ModelError(KlbrError):
    """A model call failed.

    Attributes:
        code: A `turn.failed` code, e.g. `provider_unavailable`.
        retryable: Whether the same call may succeed later.
    """

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False


class ModelUnavailable(ModelError):
    """The provider can't be reached, is overloaded, or broke off; it may work later."""

    code = "provider_unavailable"
    retryable = True


class ModelRefused(ModelError):
    """The provider refused the call for good: key, model name, credit, content."""

    code = "provider_refused"


class ContextTooLong(ModelError):
    """The prompt is longer than the model's context."""

    code = "context_too_long"


class KernelError(KlbrError):
    """The base of what kernels raise on the host's side."""


class KernelStartFailed(KernelError):
    """The kernel's process did not come up, or stated another release than was asked for."""


class KernelDied(KernelError):
    """The kernel's process is gone; the message says how."""


class CallRefused(KernelError):
    """The host refuses a call that a cell made; the text becomes the cell's exception."""


class ReleaseError(KlbrError):
    """The base of what releases raise."""


class ReleaseRefused(ReleaseError):
    """The behaviour folder can't be published; the message names the file and what to do."""


class DigestMismatch(ReleaseError):
    """A published release is missing or is not what its digest says."""


class ConfigError(KlbrError):
    """A setting is missing, malformed, or can't be used; the message names it."""


def sole(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The only leaf of `group`, or `group` itself if it has several."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found if not isinstance(found, BaseExceptionGroup) else group
