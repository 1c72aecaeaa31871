"""Makes committed archives reproducible: every user gets the same bytes."""

from __future__ import annotations

import tarfile

__all__ = ["bare"]


def bare(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the date, and the names and numbers of the user, from a member."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
