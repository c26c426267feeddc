"""One-line messages for errors, with the cause inside a Spark failure, and exit codes."""

from __future__ import annotations

from dataclasses import dataclass

from dedup.errors import CatalogError, ConfigError, StateError, cause
from dedup.errors.cause import out_of_memory, spark_cause
from dedup.errors.redaction import without_secrets

OK = 0
FAILED = 1
USAGE = 2
DAMAGE = 3
#: `check`: settings break the guarantee.
UNSAFE = 4
#: `explain`: the ID is not remembered; `catalog adopt`: the catalog held no ID to save.
NOT_FOUND = 5
#: `explain`: the catalog alone does not show whether the ID is remembered.
CANNOT_TELL = 6
INTERRUPTED = 130

#: Environment variable that adds the Python traceback to an error.
TRACEBACK = "DEDUP_TRACEBACK"


@dataclass(frozen=True, slots=True)
class Failure:
    """Message, exit code, name of the error's class, and topic of REMEDIES.md."""

    message: str
    exit_code: int
    kind: str
    remedy: str | None = None


def explain(error: BaseException) -> Failure:
    """Return the cause of an error from this package, from Spark, or from the system."""
    ours = cause(error)
    if ours is not None:
        damaged = isinstance(ours, (CatalogError, StateError))
        code = DAMAGE if damaged else USAGE if isinstance(ours, ConfigError) else FAILED
        return Failure(without_secrets(ours.text, {}), code, type(ours).__name__, ours.remedy)
    text = without_secrets(error, {})
    if memory := out_of_memory(text):
        return Failure(memory, FAILED, "OutOfMemory")
    kind = type(error).__name__
    remedy = "local-disk" if "No space left on device" in text else None
    if isinstance(error, OSError):
        name = f" ({error.filename})" if error.filename else ""
        text = without_secrets(f"{error.strerror or error}{name}", {})
        return Failure(text, FAILED, kind, remedy)
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return Failure(f"internal error, {kind}: {text}; {TRACEBACK}=1 shows where", FAILED, kind)
    return Failure(spark_cause(text), FAILED, kind, remedy)
