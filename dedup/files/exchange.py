"""Two folders that change places in one step (renameat2(2), Linux 3.15)."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from dedup.errors import ConfigError

_AT_FDCWD = -100
_EXCHANGE = 2
#: The file system, the kernel or the C library cannot do it.
_CANNOT = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EPERM}


def exchange(one: Path, other: Path) -> None:
    """Let two folders change places: at each moment both names lead to one of them.

    Raises
    ------
    ConfigError
        If the file system cannot do it; nothing has changed then.
    OSError
        If one of them is not there.
    """
    number = errno.ENOSYS
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        done = rename(
            _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_EXCHANGE)
        )
        if done == 0:
            return
        number = ctypes.get_errno()
    if number in _CANNOT:
        raise ConfigError(
            f"The file system of {other} cannot let two folders change places "
            f"({os.strerror(number)}), so that files there cannot be compacted under the eyes of "
            "readers. Nothing has changed. Local file systems of Linux can; network mounts cannot."
        )
    raise OSError(number, os.strerror(number), str(other))
