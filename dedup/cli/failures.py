"""Turn errors into one-line messages and exit codes, with the cause inside Spark's failures."""

from __future__ import annotations

import ast
import errno
import os
from dataclasses import dataclass

from dedup.errors import CatalogError, ConfigError, DedupError, StateError, cause, restart_helps
from dedup.errors.cause import out_of_memory, spark_cause
from dedup.errors.redaction import without_secrets

OK = 0
FAILED = 1
USAGE = 2
DAMAGE = 3
#: Exit code of `check` if settings break the guarantee.
UNSAFE = 4
#: Exit code of `explain` if the ID is not remembered, and of `catalog adopt` if the catalog holds
#: no ID.
NOT_FOUND = 5
#: Exit code of `explain` if the catalog alone does not show whether the ID is remembered.
CANNOT_TELL = 6
#: EX_TEMPFAIL of sysexits.h, for every command that fails with an error that may pass.
TEMPORARY = 75
INTERRUPTED = 130
#: What `dedup --help` says of the exit codes.
EXIT_CODES: dict[int | str, str] = {
    OK: "ok", FAILED: "failed", USAGE: "usage", DAMAGE: "damage", UNSAFE: "unsafe settings",
    NOT_FOUND: "not found", CANNOT_TELL: "cannot tell", "10-16": "verdicts of watch",
    TEMPORARY: "failed for now", INTERRUPTED: "interrupted",
}  # fmt: skip
#: Errors of the system that stay until somebody changes the machine.
_PERMANENT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)

#: Environment variable that adds the Python traceback to an error.
TRACEBACK = "DEDUP_TRACEBACK"


@dataclass(frozen=True, slots=True)
class Failure:
    """What a command reports of an error. `remedy` is a topic of REMEDIES.md."""

    message: str
    exit_code: int
    kind: str
    remedy: str | None = None


def explain(error: BaseException) -> Failure:
    ours = cause(error)
    code = TEMPORARY if restart_helps(error) else _code_of(ours)
    if ours is not None:
        return Failure(without_secrets(ours.text, {}), code, type(ours).__name__, ours.remedy)
    text = without_secrets(error, {})
    if memory := out_of_memory(text):
        return Failure(memory, code, "OutOfMemory")
    kind = type(error).__name__
    remedy = "local-disk" if "No space left on device" in text else None
    if isinstance(error, OSError):
        if "No usable temporary directory" in (reason := error.strerror or ""):
            return _no_temporary_folder(reason)
        code = FAILED if error.errno in _PERMANENT else code
        name = f" ({error.filename})" if error.filename else ""
        text = without_secrets(f"{error.strerror or error}{name}", {})
        return Failure(text, code, kind, remedy)
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return Failure(f"internal error, {kind}: {text}; {TRACEBACK}=1 shows where", code, kind)
    return Failure(spark_cause(text), code, kind, remedy)


def _no_temporary_folder(text: str) -> Failure:
    """Return what to report if Python's tempfile, whose words `text` are, finds no folder."""
    tried = ast.literal_eval(text.partition(" found in ")[2])
    full = next((each for each in tried if os.path.isdir(each) and os.access(each, os.W_OK)), None)
    if full is not None:
        text += f". {full} is full: free some space."
        return Failure(text, TEMPORARY, "MachineError", "local-disk")
    text += ". Let TMPDIR name a folder that exists and can be written."
    return Failure(text, FAILED, "MachineError")


def _code_of(error: DedupError | None) -> int:
    if isinstance(error, (CatalogError, StateError)):
        return DAMAGE
    return USAGE if isinstance(error, ConfigError) else FAILED
