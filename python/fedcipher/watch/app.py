"""Serves ``fedcipher dashboard``: a page of a running run, and its Prometheus metrics, for a browser on this machine.

Without a key the page shows the unencrypted part of the run's folder: clients, seconds and bytes. With a client's key
the page also shows the metrics. This process decrypts them; the browser gets neither key nor model.
Names and reasons come from clients. The page escapes them, and its content security policy allows only its own script.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from html import escape
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from fedcipher import _page
from fedcipher._addresses import host_and_port, joined, listening
from fedcipher._files import refusal
from fedcipher.app.overview import Live, waiting
from fedcipher.app.report_page import before, content
from fedcipher.errors import FedcipherError, ParameterError
from fedcipher.federation.server.outcome import Outcome
from fedcipher.foreign_text import MAX_LINE, quoted
from fedcipher.watch.prometheus import CONTENT_TYPE, exposition
from fedcipher.watch.run import WatchedRun

__all__ = ["address", "check_host", "dashboard", "listener", "readers", "serve", "serving"]

_ROUNDS = 200
"""How many of the newest rounds and reasons the page shows; ``/rounds.json`` has all of them."""
# A Host header: a name or an address, IPv6 in brackets, and optionally a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::[0-9]{1,5})?")
_END_SECONDS = 5
"""How long a server that stops waits for unfinished answers."""
_MAX_OPEN = 32
"""Connections at a time. A browser opens six; a process may have some hundred descriptors."""
_CACHE_SECONDS = 2.0
"""The interval at which a page asks for news."""
_SCRIPT = """
const main = document.querySelector("main"), lost = document.getElementById("lost");
const heard = document.getElementById("heard");
let shown = performance.now();
function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (!minutes) return seconds + " s";
  if (minutes < 60) return minutes + " min " + seconds % 60 + " s";
  return Math.floor(minutes / 60) + " h " + minutes % 60 + " min";
}
function tick() {
  for (const since of document.querySelectorAll("[data-since]"))
    since.textContent = duration(Math.round(+since.dataset.since + (performance.now() - shown) / 1000));
}
async function look() {
  try {
    const answer = await fetch("content?seen=" + main.dataset.state);
    if (answer.status === 200) {
      const link = document.activeElement.getAttribute("href");
      main.innerHTML = await answer.text();
      main.dataset.state = answer.headers.get("X-State");
      shown = performance.now();
      // Restore the focus, and let a screen reader read the new state.
      if (link) for (const again of main.querySelectorAll("a")) if (again.getAttribute("href") === link) again.focus();
      heard.textContent = main.querySelector(".state")?.innerText ?? "";
    }
    lost.hidden = answer.ok;
  } catch { lost.hidden = false; }
  setTimeout(look, 2000);
}
setTimeout(look, 2000);
setInterval(tick, 1000);
"""
_HEADERS = {
    "Cache-Control": "no-store",
    # Pictures and the page have inline styles.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def dashboard(run: WatchedRun, hosts: list[str]) -> Starlette:
    """The web application for a ``run``. It answers requests with one of ``hosts`` in the Host header."""

    drawn = _Cached(run, lambda: "".join(_content(run)))
    numbers = _Cached(run, lambda: _json(run))
    samples = _Cached(run, lambda: exposition(run.opened()))

    def page(_: Request) -> Response:
        state, shown = drawn.get()
        lost = "The dashboard does not answer. This page shows its last answer."
        lost = f'<p class="problem" id="lost" role="alert" hidden>{lost}</p>'
        heard = '<div class="heard" id="heard" role="status"></div>'
        parts = [lost, heard, f'<main data-state="{state}">', shown, "</main>", '<script src="live.js"></script>']
        return HTMLResponse(_page.document(f"Fedcipher: {quoted(run.folder.name)}", parts), headers=_HEADERS)

    def news(request: Request) -> Response:
        if request.query_params.get("seen") == run.state():
            return Response(status_code=204, headers=_HEADERS)
        state, shown = drawn.get()
        return HTMLResponse(shown, headers={**_HEADERS, "X-State": state})

    def script(_: Request) -> Response:
        return Response(_SCRIPT, media_type="text/javascript", headers=_HEADERS)

    def rounds(_: Request) -> Response:
        return _response(lambda: JSONResponse(numbers.get()[1], headers=_HEADERS))

    def metrics(_: Request) -> Response:
        return _response(lambda: Response(samples.get()[1], media_type=CONTENT_TYPE, headers=_HEADERS))

    routes = [
        Route("/", page),
        Route("/content", news),
        Route("/live.js", script),
        Route("/rounds.json", rounds),
        Route("/metrics", metrics),
    ]
    # Prevents DNS rebinding: a page of another site cannot read this one through a host name of its own.
    return Starlette(routes=routes, middleware=[Middleware(_HostCheck, hosts=hosts)])


class _Cached:
    """The result of ``make`` for a run, shared by all requests at the same time, because pictures take a second."""

    def __init__(self, run: WatchedRun, make: Callable[[], Any]) -> None:
        self._run, self._make = run, make
        self._lock = threading.Lock()
        self._state, self._until, self._made = "", 0.0, None

    def get(self) -> tuple[str, Any]:
        """The run's state and the result for this state. Raises the errors of ``make``."""
        with self._lock:
            state = self._run.state()
            if state != self._state or time.monotonic() > self._until:
                self._made, self._state = self._make(), state
                self._until = time.monotonic() + _CACHE_SECONDS
            return state, self._made


class _Connection(H11Protocol):
    """A connection that, if there are too many, closes the oldest one without an active request.

    uvicorn waits without limit for the rest of a half-sent request, so such a connection could stay open forever.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.began: float = self.loop.time()
        others = [other for other in self.connections if isinstance(other, _Connection) and other is not self]
        idle = [other for other in others if other.is_idle()]
        if len(self.connections) > _MAX_OPEN and idle:
            min(idle, key=_began).transport.abort()

    def is_idle(self) -> bool:
        """Whether no request is being answered.

        Before the first request ``cycle`` is not set, although uvicorn's types say otherwise.
        """
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return cycle is None or cycle.response_complete


def _began(connection: _Connection) -> float:
    return connection.began


class _HostCheck:
    """Answers only requests with one of ``hosts`` in the Host header.

    Starlette's own check cuts a host at its first colon and cannot handle IPv6.
    """

    def __init__(self, app: ASGIApp, hosts: list[str]) -> None:
        self._app, self._hosts = app, {host.strip("[]").lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The application has no WebSockets. A scope other than HTTP is its own start and end.
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        said = "" if headers is None else headers.get("host", "")
        if headers is not None and (headers.get("content-length", "0") != "0" or "transfer-encoding" in headers):
            # A client that announces a body may never send it. Refuse before any page is drawn.
            await PlainTextResponse("Requests have no body here", status_code=413)(scope, receive, send)
        elif headers is None or (_HOST.fullmatch(said) and _HOST.sub(r"\1\2", said).lower() in self._hosts):
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse("Invalid host header", status_code=400)(scope, receive, send)


def check_host(name: str) -> str:
    """Return ``name``, a host name for `serve`. Raises `ParameterError` if it cannot be in a Host header."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+|\[?[0-9A-Fa-f:.]+\]?", name):
        raise ParameterError(f"--host {name!r} is not the name of a machine: give a name without http:// and port")
    return name


def _response(made: Any) -> Response:
    try:
        return made()
    except FedcipherError as error:
        said = str(error)
    except OSError as error:
        # Matplotlib fails without a writable folder.
        said = refusal(error)
    return PlainTextResponse(f"{quoted(said, MAX_LINE)}\n", status_code=503, headers=_HEADERS)


def _content(run: WatchedRun) -> list[str]:
    try:
        past = run.opened()
        report = run.report(past)
        notice = run.metrics.notice()
    except FedcipherError as error:
        return _without_figures(run, error)
    live, outcome = run.live(past), Outcome.of(past.over)
    above = _page.note(notice) if notice else ""
    above += _page.note(outcome.text(), "problem") if outcome.lost or outcome.losses else ""
    if not report.rounds:
        return before(report, waiting(live), above)
    return content(report, live=live, above=above, most=_ROUNDS)


def _without_figures(run: WatchedRun, error: FedcipherError) -> list[str]:
    """The page of a run that has not begun, or that cannot be read."""
    head = f"<h1>{escape(quoted(run.folder.name))}</h1>"
    if run.is_new():
        return [
            head,
            waiting(Live(True, waited=run.waited()), "This page waits for the server to make keys and begin the run."),
        ]
    return [head, _page.note(f"This run cannot be shown: {quoted(error, MAX_LINE)}", "problem")]


def _json(run: WatchedRun) -> dict[str, Any]:
    past = run.opened()
    values = {"running": past.running, "outcome": Outcome.of(past.over).text(), **run.report(past).to_dict()}
    # A diverged training has NaN and infinity, which JSON lacks. They become null.
    return json.loads(json.dumps(values), parse_constant=lambda _: None)


def listener(listen: str) -> socket.socket:
    """A listening socket at ``HOST:PORT``; port 0 takes a free port. Raises `ParameterError` or `OSError`."""
    return listening(*host_and_port(listen, "--listen"))


def address(at: socket.socket) -> str:
    """The URL of a listening socket, for a browser."""
    return f"http://{joined(*at.getsockname()[:2])}/"


def readers(at: socket.socket) -> str:
    """A description of everyone who can open the page at this socket."""
    host: str = at.getsockname()[0]
    if ipaddress.ip_address(host).is_loopback:
        return "every user of this machine"
    return f"everyone who can connect to {host}"


@contextmanager
def serving(run: WatchedRun) -> Generator[str]:
    """Serve ``run`` in a thread during the block, at a free port of this machine; gives the URL."""
    with listener("127.0.0.1:0") as at:
        server = _server(run, at, [])
        # Joined below, because a thread that draws while Python exits crashes the process.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]})
        thread.start()
        try:
            yield address(at)
        finally:
            server.should_exit = True
            thread.join()


def serve(run: WatchedRun, at: socket.socket, hosts: list[str]) -> None:
    """Serve ``run`` at the socket until Ctrl-C or SIGTERM. Further names in ``hosts`` are accepted as Host headers."""
    ended = threading.Event()
    threading.Thread(target=run.open_while, args=(ended,), daemon=True).start()
    try:
        _server(run, at, hosts).run(sockets=[at])
    finally:
        ended.set()


def _server(run: WatchedRun, at: socket.socket, hosts: list[str]) -> uvicorn.Server:
    named = ["localhost", "127.0.0.1", "[::1]", at.getsockname()[0], socket.gethostname(), *hosts]
    return uvicorn.Server(
        uvicorn.Config(
            dashboard(run, named),
            http=_Connection,
            backlog=_MAX_OPEN,
            log_level="warning",
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_END_SECONDS,
        )
    )
