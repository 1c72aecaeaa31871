"""Archives that are committed: the same bytes, whoever makes them."""

from __future__ import annotations

import tarfile

__all__ = ["bare"]


def bare(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names and numbers of whoever makes it."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
