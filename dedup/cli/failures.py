"""What went wrong, in one line: the cause inside a Spark failure, and its exit code."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dedup.errors import LINK, CatalogError, ConfigError, DedupError, StateError

OK = 0
FAILED = 1
USAGE = 2
DAMAGE = 3
#: Settings that break the guarantee.
UNSAFE = 4
INTERRUPTED = 130

#: Set in the environment, errors come with their Python traceback.
TRACEBACK = "DEDUP_TRACEBACK"

_OURS = re.compile(r"dedup\.errors\.(\w+): (.+)")
_TOPIC = re.compile(rf"^{LINK}([a-z-]+)", re.M)
_FILE = re.compile(r"while reading file (?:file:/*)?(/\S.*?)\.(?:\s|$)")
_CAUSE = re.compile(
    r"Caused by: ([\w.$]+)(?:: (.*?))?(?=\n\s*at [\w\[]|\nCaused by|\n\s*\.\.\. |\n\n|\Z)", re.S
)
# Looks ahead, so that one class inside the text of another is found as well.
_CLASSED = re.compile(r"(?=\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ([^\n]+))")
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "TASK_WRITE_FAILED")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
_MEMORY = ("java.lang.OutOfMemoryError", "GC overhead limit exceeded")


@dataclass(frozen=True, slots=True)
class Failure:
    """One line for people, the exit code, and the topic of REMEDIES.md that says what to do."""

    message: str
    exit_code: int
    kind: str
    remedy: str | None = None


def explain(error: BaseException) -> Failure:
    """Return the cause of an error, from this package, from Spark, or from the system."""
    if isinstance(error, DedupError):
        return Failure(error.text, _exit_code(type(error)), type(error).__name__, error.remedy)
    text = str(error)
    ours = _OURS.search(text)
    if ours:
        raised = _class(ours.group(1))
        # Another exception of the same traceback stands behind an empty line.
        topic = _TOPIC.search(text[ours.end() :].partition("\n\n")[0])
        return Failure(
            ours.group(2).strip(),
            _exit_code(raised),
            raised.__name__,
            topic.group(1) if topic else None,
        )
    if any(sign in text for sign in _MEMORY):
        return Failure(
            "Spark ran out of memory; give a larger --driver-memory or fewer --files-per-trigger.",
            FAILED,
            "OutOfMemory",
        )
    if isinstance(error, OSError):
        name = f" ({error.filename})" if error.filename else ""
        return Failure(f"{error.strerror or error}{name}", FAILED, type(error).__name__)
    kind = type(error).__name__
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return Failure(f"internal error, {kind}: {text}; {TRACEBACK}=1 shows where", FAILED, kind)
    return Failure(_spark_message(text), FAILED, kind)


def _spark_message(text: str) -> str:
    causes = [_tidy(reason or name) for name, reason in _CAUSE.findall(text)]
    file = _FILE.search(text)
    if file:
        said = _tidy(text[file.end() :].split("\n", 1)[0])
        reason = causes[-1] if causes else said
        return f"{file.group(1)} cannot be read: {reason}"
    classed = [m for m in _CLASSED.finditer(text) if m.group(1) not in _WRAPPERS]
    if classed:
        said = _tidy(classed[-1].group(2))
        return said if not causes or causes[-1] in said else f"{said} ({causes[-1]})"
    if causes:
        return causes[-1]
    text = text.partition(" terminated with exception: ")[2] or text
    return _tidy(text.strip().split("\n", 1)[0]) or "no reason given"


def _tidy(text: str) -> str:
    text = _SQLSTATE.sub("", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text.strip())
    return "; ".join(line.strip() for line in text.split("\n") if line.strip())


def _class(name: str) -> type[DedupError]:
    import dedup.errors

    found = getattr(dedup.errors, name, DedupError)
    return found if isinstance(found, type) and issubclass(found, DedupError) else DedupError


def _exit_code(kind: type[DedupError]) -> int:
    if issubclass(kind, (CatalogError, StateError)):
        return DAMAGE
    return USAGE if issubclass(kind, ConfigError) else FAILED
