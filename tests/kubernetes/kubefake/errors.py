"""Refusals, as an API server words them: k8s.io/apimachinery/pkg/api/errors."""

from typing import Any

Json = dict[str, Any]


class Refusal(Exception):  # noqa: N818  # what a server says is no error of the server
    """An answer that is a Status."""

    def __init__(self, code: int, reason: str, message: str, **details: object) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> Json:
        """The body of the answer."""
        made: Json = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        }  # fmt: skip
        if self.details:
            made["details"] = self.details
        return made


def not_found(plural: str, name: str) -> Refusal:
    """404 of one object."""
    return Refusal(404, "NotFound", f'{plural} "{name}" not found', name=name, kind=plural)


def unknown_path() -> Refusal:
    """404 of a resource that is not served."""
    return Refusal(404, "NotFound", "the server could not find the requested resource")


def exists(plural: str, name: str) -> Refusal:
    """409 of a create."""
    return Refusal(409, "AlreadyExists", f'{plural} "{name}" already exists', name=name)


def conflict(plural: str, name: str, why: str = "") -> Refusal:
    """409 of an update."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and"
        " try again"
    )
    return Refusal(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')


def forbidden(message: str) -> Refusal:
    """403."""
    return Refusal(403, "Forbidden", message)


def bad_request(message: str) -> Refusal:
    """400."""
    return Refusal(400, "BadRequest", message)


def invalid(kind: str, name: str, problems: list[str]) -> Refusal:
    """422."""
    told = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return Refusal(422, "Invalid", f'{kind} "{name}" is invalid: {told}', name=name)


def expired(message: str) -> Refusal:
    """410."""
    return Refusal(410, "Expired", message)


def gone(message: str) -> Refusal:
    """410 of a list whose token is too old."""
    return Refusal(410, "Expired", message)
