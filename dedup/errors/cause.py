"""The cause inside the text of a failure: Spark's have hundreds of lines, and one that matters."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from dedup.errors.redaction import without_secrets

#: What the last line of an error begins with where a topic of REMEDIES.md speaks of it.
LINK = "Remedies: dedup remedies "
#: A line in a log is at most so long.
LINE_CHARS = 500

#: As Python begins the last line of a traceback; a text that a user wrote may name the class too.
_OURS = re.compile(r"(?:^\s*|: )dedup\.errors\.(\w+): (.+)", re.M)
#: Between two exceptions of one Python traceback.
_CHAINED = re.compile(
    r"\n\n(?:The above exception was the direct cause of|During handling of the above exception)"
)
#: What is no part of a message any more.
_TRACE = re.compile(r"^\s+at |^Caused by: |^Traceback |dedup\.errors\.", re.M)
_TOPIC = re.compile(rf"^{LINK}([a-z-]+)", re.M)
_FILE = re.compile(r"while reading file (?:file:/*)?(/\S.*?)\.(?:\s|$)")
_CAUSE = re.compile(
    r"Caused by: ([\w.$]+)(?:: (.*?))?(?=\n\s*at [\w\[]|\nCaused by|\n\s*\.\.\. |\n\n|\Z)", re.S
)
# Looks ahead, so that one class inside the text of another is found as well.
_CLASSED = re.compile(r"(?=\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ([^\n]+))")
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "TASK_WRITE_FAILED")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
# The first line behind a Python traceback that is not indented: what was raised.
_RAISED = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n(?=[ \t]+File ))*([A-Za-z_][\w.]*)"
    r"(?:: (.*))?"
)
#: Python's name for what a Java call raised: its text tells more.
_JAVA = ("py4j.", "pyspark.")
_HEAP = ("java.lang.OutOfMemoryError", "GC overhead limit exceeded")
_WORKER = ("failed to map segment", "MemoryError", "Cannot allocate memory")


#: What Spark refuses as a query starts, where the operator cannot see it before.
_REFUSED_BY_SPARK = {
    "Multiple applyInPandasWithStates are not supported": (
        "This query has two operators of dedup, or another applyInPandasWithState beside one, such "
        "as behind both sides of a union; Spark runs one of them per query. Unite the inputs first "
        "and de-duplicate them together, or write one result to a table or topic and read it with "
        "a second query."
    ),
    "applyInPandasWithState in append mode is not supported with Update output mode": (
        "The operator lets each record go on once and never takes it back, so Spark runs it in "
        "append mode only: start the query without outputMode('update')."
    ),
    "[STATE_STORE_COMMIT_VALIDATION_FAILED]": (
        "A function for foreachBatch returned before its micro-batch was read to the end, as after "
        "limit, take, first, show or isEmpty, or without reading it, or it caught an exception of "
        "Spark. Spark commits no such micro-batch; it runs again at the next start, and no record "
        "is lost. Let the function read all rows first: rows.persist() and rows.count(), then take "
        "or limit. If it does not want them, let it call "
        "rows.write.format('noop').mode('overwrite').save()."
    ),
}


class OwnError(NamedTuple):
    """An error of this package: its class, its text, and its topic of REMEDIES.md."""

    kind: str
    message: str
    topic: str | None


def own_error(text: str) -> OwnError | None:
    """Return the error of this package that a text tells, None where it tells of none.

    Of one traceback it is the one that was raised last, of several tracebacks that of the first.
    """
    found = None
    for match in _OURS.finditer(text):
        if found is not None and not _is_chained(text[found.end() : match.start()]):
            break
        found = match
    if found is None:
        return _refused_by_spark(text)
    # Another exception of the same traceback stands behind an empty line.
    rest = text[found.end() :].partition("\n\n")[0]
    topic = _TOPIC.search(rest)
    if topic is None or _TRACE.search(rest, 0, topic.start()):
        return OwnError(found.group(1), found.group(2).strip(), None)
    # Only the link shows where a message of several lines ends.
    message = found.group(2) + rest[: topic.start()]
    return OwnError(found.group(1), message.strip(), topic.group(1))


def _refused_by_spark(text: str) -> OwnError | None:
    for sign, meaning in _REFUSED_BY_SPARK.items():
        if sign in text:
            return OwnError("ConfigError", meaning, None)
    return None


def _is_chained(between: str) -> bool:
    return _CHAINED.search(between) is not None and "\n\tat " not in between


def out_of_memory(text: str) -> str | None:
    """Return who had too little memory and what to change, None where nobody had."""
    if any(sign in text for sign in _HEAP):
        return (
            "Spark ran out of memory; give a larger --driver-memory (spark.driver.memory, "
            "spark.executor.memory) or fewer --files-per-trigger (maxFilesPerTrigger, "
            "maxOffsetsPerTrigger)."
        )
    for kind, said in _RAISED.findall(text):
        if any(sign in f"{kind}: {said}" for sign in _WORKER):
            return (
                f"A Python worker got no memory ({_raised(kind, said)}). Where "
                "spark.executor.pyspark.memory is set, `dedup check` says what it must be; else "
                "give the machine more memory or the query smaller micro-batches."
            )
    return None


def spark_cause(text: str) -> str:
    """Return the line of a Spark error that names its cause, without secrets."""
    text = without_secrets(text, {})
    file = unreadable_file(text)
    if file:
        return f"{file[0]} cannot be read: {file[1]}"
    causes = _causes(text)
    raised = [one for one in _RAISED.findall(text) if not one[0].startswith(_JAVA)]
    if raised:
        return _raised(*raised[-1])
    classed = [m for m in _CLASSED.finditer(text) if m.group(1) not in _WRAPPERS]
    if classed:
        message = _tidy(classed[-1].group(2))
        return message if not causes or causes[-1] in message else f"{message} ({causes[-1]})"
    if causes:
        return causes[-1]
    text = text.partition(" terminated with exception: ")[2] or text
    return _tidy(text.strip().split("\n", 1)[0]) or "no reason given"


def unreadable_file(text: str) -> tuple[str, str] | None:
    """Return the file that Spark could not read, and why; None where it is not that."""
    file = _FILE.search(text)
    if file is None:
        return None
    causes = _causes(text)
    # Spark writes a path as a URI.
    return unquote(file.group(1)), (
        causes[-1] if causes else _tidy(text[file.end() :].split("\n", 1)[0])
    )


def _causes(text: str) -> list[str]:
    return [_tidy(reason or name) for name, reason in _CAUSE.findall(text)]


def cause_of(text: str) -> str:
    """Return the cause of a query's failure in one line, an error of this package with its class.

    At most `LINE_CHARS` characters.

    Parameters
    ----------
    text : str
        What Spark tells, with all its traces.
    """
    ours = own_error(text)
    line = (
        f"{ours.kind}: {_tidy(ours.message)}" if ours else out_of_memory(text) or spark_cause(text)
    )
    return line[:LINE_CHARS]


def _raised(kind: str, said: str) -> str:
    name = kind.rpartition(".")[2]
    return f"{name}: {_tidy(said)}" if said else name


def _tidy(text: str) -> str:
    text = _SQLSTATE.sub("", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text.strip())
    return "; ".join(line.strip() for line in text.split("\n") if line.strip())
