"""Find the line that states the cause in the text of a failure of Spark.

Such a text has hundreds of lines.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from dedup.errors.redaction import without_secrets

#: Start of the last line of an error that has a topic in REMEDIES.md.
LINK = "Remedies: dedup remedies "
#: Largest number of characters of a cause in one line.
LINE_CHARS = 500

#: Pattern of the last line of a Python traceback. A user's text may name the class elsewhere.
_OURS = re.compile(r"(?:^\s*|: )dedup\.errors\.(\w+): (.+)", re.M)
#: Pattern of the text between two exceptions of one Python traceback.
_CHAINED = re.compile(
    r"\n\n(?:The above exception was the direct cause of|During handling of the above exception)"
)
#: Pattern of what may follow the end of a message.
_TRACE = re.compile(r"^\s+at |^Caused by: |^Traceback |dedup\.errors\.", re.M)
_TOPIC = re.compile(rf"^{LINK}([a-z-]+)", re.M)
_FILE = re.compile(r"while reading file (?:file:/*)?(/\S.*?)\.(?:\s|$)")
_CAUSE = re.compile(
    r"Caused by: ([\w.$]+)(?:: (.*?))?(?=\n\s*at [\w\[]|\nCaused by|\n\s*\.\.\. |\n\n|\Z)", re.S
)
# The lookahead also finds an error class inside the text of another error class.
_CLASSED = re.compile(r"(?=\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ([^\n]+))")
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "TASK_WRITE_FAILED")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
# Pattern of the exception, which is the first line after a Python traceback that is not indented.
_RAISED = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n(?=[ \t]+File ))*([A-Za-z_][\w.]*)"
    r"(?:: (.*))?"
)
#: Prefixes of the Python exceptions that wrap an error of Java. The text of Java is more precise.
_JAVA = ("py4j.", "pyspark.")
_HEAP = ("java.lang.OutOfMemoryError", "GC overhead limit exceeded")
_WORKER = ("failed to map segment", "MemoryError", "Cannot allocate memory")


#: Advice by error of Spark at the start of a query. The operator cannot detect these earlier.
_REFUSED_BY_SPARK = {
    "Multiple applyInPandasWithStates are not supported": (
        "This query has two operators of dedup, or one beside another applyInPandasWithState, for "
        "example in both sides of a union. Spark runs one of them per query. Unite the inputs "
        "first and de-duplicate them together, or write one result to a table or topic and read it "
        "with a second query."
    ),
    "applyInPandasWithState in append mode is not supported with Update output mode": (
        "The operator emits each record once and never retracts it, so Spark runs it in append "
        "mode, or in update mode with an aggregation behind the operator. Start the query without "
        "outputMode('update'), or aggregate the emitted records."
    ),
    "[STATE_STORE_COMMIT_VALIDATION_FAILED]": (
        "A function for foreachBatch returned before it had read the whole micro-batch (after "
        "limit, take, first, show or isEmpty, for example), or it caught an exception of Spark. "
        "Spark does not commit the micro-batch. It runs again at the next start; nothing is lost. "
        "Let the function read all rows first: rows.persist() and rows.count(), then take or "
        "limit. If it does not need them, let it call "
        "rows.write.format('noop').mode('overwrite').save()."
    ),
}
#: Pattern of the error with which Spark rejects update mode for a format of this package.
_UPDATE_MODE = re.compile(r"requirement failed: dedup_(\w+) does not support Update mode", re.I)
#: What the rows of update mode become, by the format's name without ``dedup_``.
_UPDATES = dict.fromkeys(
    ("files", "delta", "iceberg"),
    "This sink only adds rows: one each time the row of a key changes.",
) | {"kafka": "Each row becomes a record, and the newest record of a key counts."}
_UPDATES_OF_A_DATABASE = "With mode='upsert' and key=... the table has one row for each key."


class OwnError(NamedTuple):
    """The class, the text and the topic in REMEDIES.md of an error of this package."""

    kind: str
    message: str
    topic: str | None


def own_error(text: str) -> OwnError | None:
    """Return the error of this package in a text, or None.

    This error is the last exception of its traceback. If several tracebacks end with errors of this
    package, the first traceback counts.
    """
    error = None
    for match in _OURS.finditer(text):
        if error is not None and not _is_chained(text[error.end() : match.start()]):
            break
        error = match
    if error is None:
        meaning = _refused_by_spark(text)
        return None if meaning is None else OwnError("ConfigError", meaning, None)
    # An empty line separates the next exception of the same traceback.
    rest = text[error.end() :].partition("\n\n")[0]
    topic = _TOPIC.search(rest)
    if topic is None or _TRACE.search(rest, 0, topic.start()):
        return OwnError(error[1], error[2].strip(), None)
    # Only the link shows where a message of several lines ends.
    message = error[2] + rest[: topic.start()]
    return OwnError(error[1], message.strip(), topic[1])


def _refused_by_spark(text: str) -> str | None:
    if update := _UPDATE_MODE.search(text):
        name = update[1].lower()
        return (
            f"Spark rejects outputMode('update') for dedup_{name}, as for every format in Python. "
            "Use the function of this sink, with the same checkpoint: "
            f"df.writeStream.outputMode('update').foreachBatch(dedup.sinks.{name}_sink(...)). "
            f"{_UPDATES.get(name, _UPDATES_OF_A_DATABASE)}"
        )
    return next((advice for sign, advice in _REFUSED_BY_SPARK.items() if sign in text), None)


def _is_chained(between: str) -> bool:
    return _CHAINED.search(between) is not None and "\n\tat " not in between


def out_of_memory(text: str) -> str | None:
    """Return which process ran out of memory and what to change, or None if no process did."""
    if any(sign in text for sign in _HEAP):
        return (
            "Spark ran out of memory. Give a larger --driver-memory (spark.driver.memory, "
            "spark.executor.memory) or fewer --files-per-trigger (maxFilesPerTrigger, "
            "maxOffsetsPerTrigger), or write huge records, such as a JSON array of many megabytes "
            "in one line, as smaller ones."
        )
    for kind, message in _RAISED.findall(text):
        if any(sign in f"{kind}: {message}" for sign in _WORKER):
            return (
                f"A Python worker got no memory ({_raised(kind, message)}). If "
                "spark.executor.pyspark.memory is set, `dedup check` advises a value. Otherwise "
                "give the machine more memory or the query smaller micro-batches."
            )
    return None


def spark_cause(text: str) -> str:
    """Return the line that states the cause of a Spark error, without secrets."""
    text = without_secrets(text, {})
    file = unreadable_file(text)
    if file:
        return f"{file[0]} cannot be read: {file[1]}"
    causes = _causes(text)
    raised = [one for one in _RAISED.findall(text) if not one[0].startswith(_JAVA)]
    if raised:
        return _raised(*raised[-1])
    classed = [m for m in _CLASSED.finditer(text) if m[1] not in _WRAPPERS]
    if classed:
        message = _tidy(classed[-1][2])
        return message if not causes or causes[-1] in message else f"{message} ({causes[-1]})"
    if causes:
        return causes[-1]
    text = text.partition(" terminated with exception: ")[2] or text
    return _tidy(text.strip().split("\n", 1)[0]) or "no reason given"


def unreadable_file(text: str) -> tuple[str, str] | None:
    """Return the file that Spark could not read, and the reason, or None."""
    file = _FILE.search(text)
    if file is None:
        return None
    causes = _causes(text)
    reason = causes[-1] if causes else _tidy(text[file.end() :].split("\n", 1)[0])
    return unquote(file[1]), reason  # Spark shows the path as a URI


def _causes(text: str) -> list[str]:
    return [_tidy(reason or name) for name, reason in _CAUSE.findall(text)]


def cause_of(text: str) -> str:
    """Return the cause of a query's failure in one line of at most `LINE_CHARS` characters.

    If the cause is an error of this package, the line begins with the error's class. `text` is
    Spark's text with all its traces.
    """
    ours = own_error(text)
    line = (
        f"{ours.kind}: {_tidy(ours.message)}" if ours else out_of_memory(text) or spark_cause(text)
    )
    return line[:LINE_CHARS]


def _raised(kind: str, message: str) -> str:
    name = kind.rpartition(".")[2]
    return f"{name}: {_tidy(message)}" if message else name


def _tidy(text: str) -> str:
    text = _SQLSTATE.sub("", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text.strip())
    return "; ".join(line.strip() for line in text.split("\n") if line.strip())
