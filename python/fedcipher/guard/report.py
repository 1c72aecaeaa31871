"""The report of an audit of logs, for people who answer for the protection of data: as HTML, or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from fedcipher import _page
from fedcipher.federation.client.evidence import APPROVAL, CHARTER, FRAME, OPENED, QUERY, REFUSAL
from fedcipher.foreign_text import MAX_NAME, quoted
from fedcipher.guard.audit import Audit, Fate, SiteLog

__all__ = ["as_html", "as_markdown"]

_TITLE = "The evidence of the sites' logs"
_LIMITS = (
    "A log has what its site has signed. A site that works beside its log is found only by a sum that names the site, "
    "or by a head that another party has kept.",
    "Heads that only the site and the server have do not help against both of them together. Keep this report at a "
    "third place: its roots are heads.",
    "A frame is in a sum for three reasons: a client makes one frame for each number, a sum opens only if it is of the "
    "clients that it names, and every opened sum is a line. Where clients share a key, a client that works with the "
    "server can break the second.",
    "A frame that no sum of its number names was left out. The server's reason is the server's word.",
    "If a server opens sums itself, sites open none, and their logs show frames and charters alone. The same holds for "
    "sums of queries.",
    "The logs have no data, no model, and no causes of refusals. Times are those of the sites' clocks.",
)
Block = tuple[str, Any]


def _blocks(audit: Audit) -> list[Block]:
    """The report as headings, sentences, lists and tables. All texts are quoted."""
    found = len(audit.findings)
    verdict = (
        "No contradiction was found."
        if not found
        else f"{found} {'finding needs' if found == 1 else 'findings need'} an explanation."
    )
    made: list[Block] = [
        ("text", f"{verdict} {len(audit.logs)} logs were read, and {audit.heads} heads that servers hold fit them."),
        ("heading", "Findings"),
        ("list", [quoted(text, 2000) for text in audit.findings] or ["None."]),
        ("heading", "Sites"),
        ("table", [_SITE_HEAD, *map(_site_row, audit.logs)]),
        ("heading", "Accepted runs and queries"),
        ("table", [_CHARTER_HEAD, *(row for log in audit.logs for row in _charter_rows(log))]),
        ("heading", "Frames"),
        ("table", [_FATE_HEAD, *map(_fate_row, audit.fates)]),
    ]
    if audit.notes:
        made += [("heading", "Notes"), ("list", [quoted(text, 2000) for text in audit.notes])]
    return [*made, ("heading", "Limits of this report"), ("list", list(_LIMITS))]


_SITE_HEAD = ["site", "lines", "first line", "last line", "frames", "opened sums", "refusals", "root of the log"]


def _site_row(log: SiteLog) -> list[str]:
    kinds = [line.kind for line in log.lines]
    counts = [str(kinds.count(kind)) for kind in (FRAME, OPENED, REFUSAL)]
    times = [_time(log.lines[0].at), _time(log.lines[-1].at)]
    return [log.site, str(len(kinds)), *times, *counts, log.parsed.head.root.hex()]


_CHARTER_HEAD = ["site", "what", "number", "SHA-256 of the document", "SHA-256 of app and settings", "approved by"]


def _charter_rows(log: SiteLog) -> list[list[str]]:
    approved = {facts["charter"]: facts["by"] for facts in log.of(APPROVAL)}
    rows: list[list[str]] = []
    for line in log.lines:
        if line.kind in (CHARTER, QUERY):
            facts = line.facts
            number = facts["run"] if line.kind == CHARTER else facts["round"]
            by = quoted(approved.get(facts["charter"], "the site's policy"), MAX_NAME)
            what = "run" if line.kind == CHARTER else "query"
            rows.append([log.site, what, str(number), facts["charter"], facts["context"], by])
    return rows


_FATE_HEAD = ["site", "round", "purpose", "number", "SHA-256 of the frame", "in the sum", "shown by the logs of"]


def _fate_row(fate: Fate) -> list[str]:
    facts = fate.facts
    state = {True: "yes", False: "no", None: "no log here has opened one"}[fate.in_sum]
    if fate.why:
        state = f"{state}; the server says: {fate.why}"
    purpose = quoted(facts["purpose"], MAX_NAME)
    shown = ", ".join(fate.shown_by)
    return [fate.site, str(facts["index"]), purpose, str(facts["round"]), facts["sha256"], state, shown]


def _time(seconds: int) -> str:
    """A time in UTC; the number itself if it is beyond all calendars."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


# --- forms -----------------------------------------------------------------------------------


def as_html(audit: Audit) -> str:
    """The report as one HTML page."""
    parts = [f"<main><h1>{_TITLE}</h1>"]
    for kind, content in _blocks(audit):
        if kind == "heading":
            parts.append(_page.heading(content))
        elif kind == "text":
            parts.append(_page.note(content, "problem" if audit.findings else "note"))
        elif kind == "list":
            parts += [_page.note(text) for text in content]
        elif len(content) > 1:
            parts.append(_page.table(content))
    return _page.document(_TITLE, [*parts, "</main>"])


def as_markdown(audit: Audit) -> str:
    """The report as Markdown."""
    parts = [f"# {_TITLE}"]
    for kind, content in _blocks(audit):
        if kind == "heading":
            parts.append(f"## {content}")
        elif kind == "text":
            parts.append(_escaped(content))
        elif kind == "list":
            parts.append("\n".join(f"* {_escaped(text)}" for text in content))
        elif len(content) > 1:
            parts.append(_markdown_table(content))
    return "\n\n".join(parts) + "\n"


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *others])


def _escaped(text: str) -> str:
    """``text`` without a meaning in Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>|&#])", r"\\\1", text)
