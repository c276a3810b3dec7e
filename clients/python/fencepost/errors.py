"""What can go wrong."""

from __future__ import annotations

from typing import Any, Optional


class FencepostError(Exception):
    """An answer of the lock service that is no success. `problem` has all of it."""

    def __init__(self, message: str, problem: Optional[dict[str, Any]] = None) -> None:
        super().__init__(message)
        self.problem: dict[str, Any] = problem or {}
        self.repeated = False

    @property
    def code(self) -> str:
        return str(self.problem.get("code", ""))


class Busy(FencepostError):
    """Another one holds the lock, and the request did not wait."""

    @property
    def holders(self) -> list[dict[str, Any]]:
        """Those who hold it, if the access token may read the name: `holder`, `host`, `pid`, `since_micros` and more."""
        return list(self.problem.get("holders", []))


class WaitTimeout(Busy, TimeoutError):
    """Another one still held the lock at the end of the wait."""


class Lost(FencepostError):
    """The lock is lost. `loss` says how: `expired`, `evicted`, `deleted`, `released`, `forked` and others; `why` has an operator's reason."""

    def __init__(self, name: str, loss: str, why: Optional[str] = None) -> None:
        super().__init__(f"the lock {name} is lost: {loss}" + (f" ({why})" if why else ""))
        self.loss, self.why = loss, why


class Denied(FencepostError):
    """The access token is missing, unknown or expired, or does not allow this for this name."""


class Invalid(FencepostError):
    """The request breaks a rule, or the engine does not have what was asked for."""


class Unreachable(FencepostError, ConnectionError):
    """No copy of the service has answered."""


class Untrusted(FencepostError):
    """The certificate of the service is not trusted."""


class AlreadyRun(FencepostError):
    """The job has run for this firing. Users of `once` do not see it."""


def of_problem(problem: dict[str, Any]) -> FencepostError:
    code = problem.get("code", "")
    kind = {
        "busy": Busy,
        "timed-out": WaitTimeout,
        "already-run": AlreadyRun,
        "unauthenticated": Denied,
        "forbidden": Denied,
        "denied-by-engine": Denied,
    }.get(code, Invalid)
    return kind(f"{code}: {problem.get('detail', '')}", problem)
