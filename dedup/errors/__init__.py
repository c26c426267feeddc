"""Errors and warnings of the package. The class says whose fault it is, the text what to do."""

from __future__ import annotations

import os
import traceback
from datetime import datetime, timedelta

from dedup.errors.cause import LINK, own_error

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def _iso(time_ms: int) -> str:
    return f"{datetime(1970, 1, 1) + timedelta(milliseconds=time_ms):%Y-%m-%d %H:%M:%S.%f}"[:-3]


class DedupError(Exception):
    """Base class of every error that this package raises on purpose.

    Parameters
    ----------
    *args
        As of any exception; the first is the text.
    remedy
        Topic of ``REMEDIES.md`` that says what to do. The error then ends with the command that
        prints it, also in the text that reaches the driver from a Python worker.
    """

    def __init__(self, *args: object, remedy: str | None = None) -> None:
        super().__init__(*args)
        self.remedy = remedy

    def __str__(self) -> str:
        return self.text if self.remedy is None else f"{self.text}\n{LINK}{self.remedy}"

    def _render_traceback_(self) -> list[str]:
        """Return the traceback for a notebook: the caller's lines, without this package's."""
        told = []
        for frame in traceback.extract_tb(self.__traceback__):
            if frame.filename.startswith(_PACKAGE):
                break
            if "IPython" not in frame.filename:
                told += traceback.format_list([frame])
        return [*told, f"{type(self).__name__}: {self}"]

    @property
    def text(self) -> str:
        """What went wrong, without the link: for the text of another error."""
        return super().__str__()


class ConfigError(DedupError, ValueError):
    """The caller's options or settings cannot work; change the option that the text names."""


class DataError(DedupError):
    """A record breaks a rule that the user chose, such as a null ID under ``null_ids="error"``."""


class CatalogError(DedupError):
    """Storage at the catalog root is missing, damaged or foreign; the text says the remedy."""


class OtherRelease(CatalogError):
    """An object at the catalog root is whole, and of a format that this release does not read."""

    @classmethod
    def at(cls, where: str, why: object) -> OtherRelease:
        """Return the error for the object that ``where`` names."""
        return cls(
            f"{where} was written by another release: {why}. It is not damaged, and nothing was "
            "read, changed or lost.",
            remedy="other-version",
        )


class ObjectMissing(CatalogError):
    """There is no object of this name under the catalog root."""


class FilterDamaged(CatalogError):
    """Filter bytes cannot be trusted: ask the exact catalog instead, and rebuild the filter."""


class SegmentDamaged(CatalogError):
    """A segment is missing or damaged at the root; it can be restored, or its bucket forgotten."""


class StateError(DedupError):
    """A Spark state row is damaged, or was written by a version that this one cannot read."""

    @classmethod
    def damaged(cls, what: str, *, with_catalog: bool = True) -> StateError:
        """Return the error for a row whose bytes cannot be trusted."""
        together = " (with its catalog)" if with_catalog else ""
        return cls(
            f"A state row in the checkpoint is damaged: {what}. Nothing was emitted or lost. "
            f"Restore the checkpoint from a copy{together}, or roll it back to an "
            "earlier micro-batch.",
            remedy="damaged-state",
        )

    @classmethod
    def of_another(cls, found: str, asked: str) -> StateError:
        """Return the error for a whole row that another operator wrote."""
        return cls(
            f"This checkpoint is that of a query with {found}, and is given to one with {asked}, "
            "which cannot go on with its state. Give each query a checkpoint of its own. Nothing "
            "was emitted, changed or lost.",
            remedy="changed-settings",
        )

    @classmethod
    def of_another_catalog(cls) -> StateError:
        """Return the error for a state that does not belong to the birth certificate."""
        return cls(
            "The catalog does not belong to this checkpoint: the state was made with another hash "
            "key than the one in the query's catalog.json. Nothing was emitted or lost. Restore "
            "the catalog that the checkpoint was last used with.",
            remedy="missing-catalog",
        )

    @classmethod
    def unknown_version(cls, found: int, known: int) -> StateError:
        """Return the error for a row that another release wrote."""
        return cls(
            f"A state row in the checkpoint has format {found}; this release of rolling-dedup "
            f"reads format {known}. Install the release that wrote it, or a newer one.",
            remedy="other-version",
        )


class SinkError(DedupError):
    """A sink holds what contradicts the query, or does not take part; nothing was written twice."""


class SourceError(DedupError):
    """Kafka or its schema registry does not answer, or contradicts the query; nothing is passed by.

    Trying again may help where a server was away; where a topic was made anew it never does.
    """


class ClockError(DedupError):
    """The processing-time clock jumped further than the query accepts."""

    @classmethod
    def ahead(cls, now_ms: int, worker_now_ms: int) -> ClockError:
        """Return the error for a micro-batch that is ahead of the worker's clock."""
        return cls(
            f"The micro-batch's time {_iso(now_ms)} is more than a minute ahead of this worker's "
            f"clock {_iso(worker_now_ms)}. One of the two machines' clocks is wrong; IDs "
            "would be forgotten too early. Set the clocks, or accept it with "
            "accept_clock_jump=True.",
            remedy="clock",
        )

    @classmethod
    def fell(cls, now_ms: int, last_now_ms: int) -> ClockError:
        """Return the error for a micro-batch before the last one."""
        return cls(
            f"The micro-batch's time fell from {_iso(last_now_ms)} to {_iso(now_ms)} within one "
            "run. The driver's clock was set back. Restart the query, or accept it with "
            "accept_clock_jump=True; time then stands still until the clock has caught up.",
            remedy="clock",
        )


class ExecutorError(DedupError, ImportError):
    """An executor lacks this package, or has it in another version; the text says which and where.

    There it is made without the package, so only its name arrives on the driver.
    """


def _pip_line(extra: str) -> str | None:
    """The command that brings an extra's packages, wherever this package itself came from."""
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
        Name of the extra that brings it, such as ``"spark"``.
    purpose
        What needs it, as the start of a sentence, such as ``"The dedup command"``.
    """

    def __init__(self, extra: str, purpose: str) -> None:
        self.extra = extra
        self.purpose = purpose
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which is not installed: "
            f"{_pip_line(extra) or 'install rolling-dedup with it'}"
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        # The default would call the class with the message alone.
        return type(self), (self.extra, self.purpose)


def cause(failure: BaseException | str | None) -> DedupError | None:
    """Return the error of this package that is behind a failure of Spark, None where none is.

    What a task raises reaches the driver as text inside an exception of Spark's, such as
    StreamingQueryException, on Spark Connect too. So ``except ConfigError`` never sees it::

        try:
            query.awaitTermination()
        except Exception as error:
            raise cause(error) or error from None

    Parameters
    ----------
    failure : BaseException, str or None
        An exception, what ``query.exception()`` returned, or the text that a listener was given.

    Returns
    -------
    DedupError or None
        Of the class that was raised, with its text and its remedy; an error of this package is
        returned as it is. For an exception that another one caused, both are searched.
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


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # PySpark asks the JVM, which may be gone
        return str(getattr(error, "_desc", ""))


def _class(name: str) -> type[DedupError]:
    found = globals().get(name)
    if not isinstance(found, type) or not issubclass(found, DedupError):
        return DedupError
    # It is made of other arguments, and no task raises it.
    return DedupError if found is MissingExtraError else found


class DedupWarning(RuntimeWarning):
    """Answers are right, but something is slower or larger than it needs to be."""
