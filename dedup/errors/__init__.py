"""Errors and warnings. The class says who can fix the problem, and the text says how."""

from __future__ import annotations

import os
import traceback

from dedup.errors.cause import LINK, own_error

__all__ = [
    "CatalogError",
    "ClockError",
    "ConfigError",
    "DataError",
    "DedupError",
    "DedupWarning",
    "ExecutorError",
    "FilterDamaged",
    "MachineError",
    "MissingExtraError",
    "ObjectMissing",
    "OtherRelease",
    "SegmentDamaged",
    "SinkError",
    "SourceError",
    "StateError",
    "cause",
    "restart_helps",
]

#: The newest commit that reads what was written before the first release, 0.1.0.
LAST_BEFORE_RELEASE = "5d5cc9096d00"
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class DedupError(Exception):
    """Base class of all errors of this package.

    Parameters
    ----------
    *args
        The arguments of an exception. The first is the text.
    remedy
        Topic of ``REMEDIES.md`` with the solution. The text then ends with the command that prints
        the topic.
    """

    def __init__(self, *args: object, remedy: str | None = None) -> None:
        super().__init__(*args)
        self.remedy = remedy

    def __str__(self) -> str:
        return self.text if self.remedy is None else f"{self.text}\n{LINK}{self.remedy}"

    def _render_traceback_(self) -> list[str]:
        """Return the traceback for a notebook, with only the lines of the user's code."""
        lines = []
        for frame in traceback.extract_tb(self.__traceback__):
            if frame.filename.startswith(_PACKAGE):
                break
            if "IPython" not in frame.filename:
                lines += traceback.format_list([frame])
        return [*lines, f"{type(self).__name__}: {self}"]

    @property
    def text(self) -> str:
        """The error's text without the command for remedies, for use in another error."""
        return super().__str__()


class ConfigError(DedupError, ValueError):
    """An option or setting is invalid. Change the option that the text names."""


class DataError(DedupError):
    """A record breaks a rule that the user chose, such as a null ID under ``null_ids="error"``."""


class CatalogError(DedupError):
    """An object at the catalog root is missing, damaged or foreign, or storage does not answer."""


class OtherRelease(CatalogError):
    """An object at the catalog root is intact, but this release does not read its format."""

    @classmethod
    def at(cls, where: str, why: object) -> OtherRelease:
        """Return the error for the object at `where`, with the reason `why` it cannot be read."""
        return cls(
            f"{where} was written by another release: {why}. It is not damaged, and nothing was "
            "read, changed or lost.",
            remedy="other-version",
        )


def before_release(what: str) -> str:
    """Return the message about data from before the first release."""
    return (
        f"{what} was written before 0.1.0, the first release, which does not read it. Start "
        "with a new checkpoint and a new catalog folder (dedup run: with a new --output), or "
        f"continue with commit {LAST_BEFORE_RELEASE}. Nothing was changed or lost."
    )


class ObjectMissing(CatalogError):
    """An object is missing at the catalog root."""


class FilterDamaged(CatalogError):
    """The bytes of a filter are damaged.

    The caller must ask the exact catalog instead, and rebuild the filter.
    """


class SegmentDamaged(CatalogError):
    """A segment at the catalog root is missing or damaged. Restore it, or accept its loss."""


class StateError(DedupError):
    """A Spark state row is damaged, or this release does not read its format."""

    @classmethod
    def damaged(cls, what: str, *, with_catalog: bool = True) -> StateError:
        """Return the error for a state row with the damage `what`."""
        together = " (with its catalog)" if with_catalog else ""
        return cls(
            f"A state row in the checkpoint is damaged: {what}. Nothing was emitted or lost. "
            f"Restore the checkpoint from a copy{together}, or roll it back to an earlier "
            "micro-batch.",
            remedy="damaged-state",
        )


class SinkError(DedupError):
    """An output is not as its sink left it, or its server does not answer.

    Nothing was written twice.
    """


class SourceError(DedupError):
    """Kafka or its schema registry does not answer, or its answer does not fit the query.

    Nothing is skipped.

    A retry may help if a server was down. It never helps if a topic was recreated.
    """


class ClockError(DedupError):
    """The processing-time clock jumped further than the query accepts."""


class ExecutorError(DedupError, ImportError):
    """An executor lacks this package, or has another version of it.

    An executor without the package cannot import this class. So only the name of the class arrives
    on the driver.
    """


class MachineError(DedupError):
    """The machine lacks something that Spark needs, such as Java. Add what the text names."""


def _pip_line(extra: str) -> str | None:
    import shlex
    from importlib import metadata

    try:
        required = metadata.requires("rolling-dedup") or []
    except metadata.PackageNotFoundError:
        return None
    parts = [line.partition(";") for line in required]
    names = [name.strip() for name, _, when in parts if when.strip() == f'extra == "{extra}"']
    return f"pip install {shlex.join(names)}" if names else None


class MissingExtraError(DedupError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    extra
        Name of the extra that contains the dependency, such as ``"spark"``.
    purpose
        The feature that needs the dependency, such as ``"The dedup command"``. The text of the
        error begins with it.
    """

    def __init__(self, extra: str, purpose: str) -> None:
        self.extra = extra
        self.purpose = purpose
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which is not installed: "
            f"{_pip_line(extra) or 'install rolling-dedup with it'}"
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        # By default, unpickling would call the class with only the message.
        return type(self), (self.extra, self.purpose)


def cause(failure: BaseException | str | None) -> DedupError | None:
    """Return the error of this package that caused a failure of Spark, or None.

    If a task raises an error, the driver gets only its text, in an exception of Spark such as
    StreamingQueryException. So ``except ConfigError`` never catches the error::

        try:
            query.awaitTermination()
        except Exception as error:
            raise cause(error) or error from None

    Parameters
    ----------
    failure : BaseException, str or None
        An exception, the result of ``query.exception()``, or the text of a listener's event.

    Returns
    -------
    DedupError or None
        An error of the class that the task raised, with its text and remedy. If ``failure``, or an
        exception that caused it, is an error of this package, that error is returned unchanged.
    """
    seen: list[BaseException] = []
    while failure is not None and failure not in seen:
        if isinstance(failure, DedupError):
            return failure
        ours = own_error(failure if isinstance(failure, str) else _text_of(failure))
        if ours is not None:
            return _class(ours.kind)(ours.message, remedy=ours.topic)
        if isinstance(failure, str):
            return None
        seen.append(failure)
        failure = failure.__cause__ or getattr(failure, "_cause", None)  # the latter is PySpark's
    return None


#: Topics of the remedies of errors that a new start may overcome, by class, with None for errors
#: without a topic. A server or store may answer again, space may be freed, another start may end.
_OVERCOME: dict[type[DedupError], frozenset[str | None]] = {
    DedupError: frozenset({None, "local-disk", "output-folder"}),
    CatalogError: frozenset({None, "storage", "local-disk"}),
    SinkError: frozenset({None}),
    SourceError: frozenset({None, "poison-records"}),  # the registry or quarantine did not answer
    ClockError: frozenset({"clock"}),  # the right time catches up
} | dict.fromkeys(
    (ConfigError, DataError, OtherRelease, ObjectMissing, FilterDamaged, SegmentDamaged,
     StateError, ExecutorError, MachineError, MissingExtraError),
    frozenset(),
)  # fmt: skip


def restart_helps(failure: BaseException | str) -> bool:
    """Return whether a new start of the query, with nothing changed, may overcome a failure.

    Parameters
    ----------
    failure : BaseException or str
        What `cause` takes.

    Returns
    -------
    bool
        False if every start would meet the same error: an invalid option, a record that breaks a
        rule, damage, or an output that is not as its sink left it. True if the error may pass, such
        as a server that does not answer. Also true for an error of other code, because nothing is
        known of it. So limit the number of starts, as `run_with_restarts` does.
    """
    ours = cause(failure)
    if ours is None:
        return True
    known = next(kind for kind in type(ours).__mro__ if kind in _OVERCOME)
    return ours.remedy in _OVERCOME[known]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # PySpark asks the JVM, which may be gone
        return str(getattr(error, "_desc", ""))


def _class(name: str) -> type[DedupError]:
    kind = globals().get(name)
    if not isinstance(kind, type) or not issubclass(kind, DedupError):
        return DedupError
    # MissingExtraError takes other arguments, and no task raises it.
    return DedupError if kind is MissingExtraError else kind


class DedupWarning(RuntimeWarning):
    """Results are right, but something is slower or larger than necessary."""
