"""Import the public names of a package on first use, and list them by ``dir``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for the package with the name `package`.

    They import a public name when somebody first uses it, so that importing the package does not
    import Spark. `homes` maps each public name to its module. A name that its module does not have
    stands for the module itself. Type checkers read the same names in the stub ``__init__.pyi``.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(homes[name])
        except ModuleNotFoundError as error:
            # If it is there, only a part is missing, as in another release.
            if str(error.name).partition(".")[0] == "pyspark" and not sys.modules.get("pyspark"):
                from dedup.errors import MissingExtraError

                raise MissingExtraError("spark", f"{package}.{name}") from None
            raise
        return getattr(module, name, module)

    return load, lambda: list(sys.modules[package].__all__)


def library(extra: str, purpose: str, *modules: str) -> ModuleType:
    """Import modules of an extra, and return the first.

    Raises MissingExtraError if one of them is not installed.
    """
    from dedup.errors import MissingExtraError

    try:
        first, *_ = [import_module(name) for name in modules]
    except ImportError:
        raise MissingExtraError(extra, purpose) from None
    return first
