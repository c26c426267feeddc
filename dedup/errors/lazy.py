"""Import the public names of a package on first use, and list them by ``dir``."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for the package with the name `package`.

    They import a public name when somebody first uses it, so that importing the package does not
    import Spark. The names are in the package's stub ``__init__.pyi``, which type checkers read as
    well. In a stub, a relative import is of a module that is itself public, and an annotated name
    is in the package.
    """
    home_of: dict[str, str] = {}
    modules: dict[str, str] = {}
    own: list[str] = []
    for node in ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"").body:
        if isinstance(node, ast.ImportFrom):
            for name in (each.name for each in node.names):
                if node.level:
                    modules[name] = ".".join(filter(None, (package, node.module, name)))
                else:
                    home_of[name] = str(node.module)
        elif isinstance(node, ast.AnnAssign):
            own.append(ast.unparse(node.target))

    def load(name: str) -> Any:
        if name in modules:
            return import_module(modules[name])
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(home_of[name]), name)
        except ModuleNotFoundError as error:
            # If it is there, only a part is missing, as in another release.
            if str(error.name).partition(".")[0] == "pyspark" and not sys.modules.get("pyspark"):
                from dedup.errors import MissingExtraError

                raise MissingExtraError("spark", f"{package}.{name}") from None
            raise

    public = sorted([*modules, *home_of, *own])
    return load, lambda: public, public


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
