"""Trusted folders and files, whose content may be executed: nobody else can write them."""

import contextlib
import os
import stat
from pathlib import Path

try:
    import grp
    import pwd
except ImportError:  # Windows has neither users of this kind nor modes
    grp = pwd = None  # type: ignore[assignment]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def distrust(folder: Path) -> str | None:
    """The reason not to execute files of a folder, or None.

    The folder, those above it and the links on the way belong to this user or to root, and nobody
    else can write there. A folder above may be open to all where it is sticky, as /tmp is.
    """
    if not hasattr(os, "geteuid"):
        return None
    here = Path(os.path.abspath(folder))  # noqa: PTH100 (links are looked at one by one)
    real = Path(os.path.realpath(here))
    try:
        for path in dict.fromkeys([*reversed(here.parents), here, *reversed(real.parents), real]):
            reason = _reason(path, os.lstat(path), is_folder=path in (here, real))
            if reason is not None:
                return reason
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    return None


def _reason(path: Path, status: os.stat_result, *, is_folder: bool) -> str | None:
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to {_user(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return None  # the mode of a link means nothing, and its target is looked at
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is no folder"
    open_to = status.st_mode & _OTHERS
    if open_to & stat.S_IWGRP and _is_private_group(status.st_gid):
        open_to &= ~stat.S_IWGRP
    if open_to and (is_folder or not status.st_mode & stat.S_ISVTX):
        return f"others can write to {path}"
    return None


def is_trusted(status: os.stat_result) -> bool:
    """True if only this user or root owns an open file or folder and can write to it."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & _OTHERS


def _is_private_group(number: int) -> bool:
    """True if a group has no member but this user, as many systems give each user one."""
    with contextlib.suppress(KeyError):
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(number)
        return group.gr_name == user and set(group.gr_mem) <= {user}
    return False


def _user(number: int) -> str:
    with contextlib.suppress(KeyError):
        return f"the user {pwd.getpwuid(number).pw_name}"
    return f"the user {number}"
