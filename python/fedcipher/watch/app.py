"""``fedcipher dashboard``: a run's page while it grows, and its Prometheus metrics, for a browser on this machine.

Without a key it shows what is in the run's folder in the clear: who took part, seconds, bytes. With a client's key it
shows the metrics too, which are opened here; the browser gets no key and no model.
Names and reasons come from clients: all of it is escaped, and the page may load and run nothing but its own script.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from html import escape
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fedcipher import _page
from fedcipher._files import refusal
from fedcipher.app.report_page import content
from fedcipher.errors import FedcipherError, ParameterError
from fedcipher.foreign_text import MAX_LINE, quoted
from fedcipher.watch.prometheus import CONTENT_TYPE, exposition
from fedcipher.watch.run import WatchedRun

__all__ = ["address", "check_host", "dashboard", "listener", "readers", "serve", "serving"]

_ROUNDS = 200
"""Newest rounds, and reasons, on the page; all are in ``/rounds.json``."""
# Of a Host header: a name or an address, one of IPv6 in brackets, and perhaps a port.
_NAME = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::[0-9]{1,5})?")
_END_SECONDS = 5
"""For answers that are under way."""
_SCRIPT = """
const main = document.querySelector("main"), lost = document.getElementById("lost");
async function look() {
  try {
    const answer = await fetch("content?seen=" + main.dataset.state);
    if (answer.status === 200) {
      main.innerHTML = await answer.text();
      main.dataset.state = answer.headers.get("X-State");
    }
    lost.hidden = answer.ok;
  } catch { lost.hidden = false; }
  setTimeout(look, 2000);
}
setTimeout(look, 2000);
"""
_HEADERS = {
    "Cache-Control": "no-store",
    # Pictures and the page have their style in them.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def dashboard(run: WatchedRun, hosts: list[str]) -> Starlette:
    """The application for a ``run``, to browsers that call it by one of ``hosts``."""

    def page(_: Request) -> Response:
        state = run.state()
        lost = '<p class="problem" id="lost" hidden>The dashboard does not answer: this is what it said last.</p>'
        parts = [lost, f'<main data-state="{state}">', *_content(run), "</main>", '<script src="live.js"></script>']
        return HTMLResponse(_page.document(f"Fedcipher: {quoted(run.folder.name)}", parts), headers=_HEADERS)

    def news(request: Request) -> Response:
        state = run.state()
        if request.query_params.get("seen") == state:
            return Response(status_code=204, headers=_HEADERS)
        return HTMLResponse("".join(_content(run)), headers={**_HEADERS, "X-State": state})

    def script(_: Request) -> Response:
        return Response(_SCRIPT, media_type="text/javascript", headers=_HEADERS)

    def rounds(_: Request) -> Response:
        return _answered(lambda: JSONResponse(_json(run), headers=_HEADERS))

    def metrics(_: Request) -> Response:
        return _answered(lambda: Response(exposition(run.opened()), media_type=CONTENT_TYPE, headers=_HEADERS))

    routes = [
        Route("/", page),
        Route("/content", news),
        Route("/live.js", script),
        Route("/rounds.json", rounds),
        Route("/metrics", metrics),
    ]
    # A page elsewhere cannot have a browser here read this under a name of its own (DNS rebinding).
    return Starlette(routes=routes, middleware=[Middleware(_Named, hosts=hosts)])


class _Named:
    """Answers only who calls by one of ``hosts``. Starlette's own ends a name at its first colon, which IPv6 has."""

    def __init__(self, app: ASGIApp, hosts: list[str]) -> None:
        self._app, self._hosts = app, {host.strip("[]").lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # There are no WebSockets here; what is neither is the application's own beginning and end.
        said = Headers(scope=scope).get("host", "") if scope["type"] == "http" else None
        if said is None or (_NAME.fullmatch(said) and _NAME.sub(r"\1\2", said).lower() in self._hosts):
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse("Invalid host header", status_code=400)(scope, receive, send)


def check_host(name: str) -> str:
    """A name for `serve`. Raises `ParameterError` where no browser can call by it."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+|\[?[0-9A-Fa-f:.]+\]?", name):
        raise ParameterError(f"--host {name!r} is no name of a machine: give it without http:// and port")
    return name


def _answered(made: Any) -> Response:
    try:
        return made()
    except FedcipherError as error:
        said = str(error)
    except OSError as error:
        # Matplotlib wants a folder that it may write to.
        said = refusal(error)
    return PlainTextResponse(f"{quoted(said, MAX_LINE)}\n", status_code=503, headers=_HEADERS)


def _content(run: WatchedRun) -> list[str]:
    try:
        past = run.opened()
        report = run.report(past)
        notice = run.metrics.notice()
    except FedcipherError as error:
        return [
            f"<h1>{escape(quoted(run.folder.name))}</h1>",
            _page.note(f"Nothing to see yet: {quoted(error, MAX_LINE)}", "problem"),
        ]
    number = len(report.rounds)
    under_way = past.rounds and past.rounds[-1].number not in past.ended
    if not past.running:
        said = "The server is not running." + (" It has ended in the middle of a round." if under_way else "")
    else:
        said = f"The server is running; round {past.rounds[-1].round} is under way." if under_way else "It is running."
    above = _page.note(f"{said} {number} rounds have ended.") + (_page.note(notice) if notice else "")
    return content(report, above=above, most=_ROUNDS)


def _json(run: WatchedRun) -> dict[str, Any]:
    past = run.opened()
    told = {"running": past.running, **run.report(past).to_dict()}
    # JSON has neither NaN nor infinity, which a training that diverged has.
    return json.loads(json.dumps(told), parse_constant=lambda _: None)


def listener(listen: str) -> socket.socket:
    """A socket at ``HOST:PORT``; port 0 is any. Raises `ParameterError` or `OSError`."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ParameterError(f"--listen {listen!r} is not HOST:PORT")
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        # Who connects before the server serves waits, and is not refused.
        made.listen()
    except BaseException:
        made.close()
        raise
    return made


def address(at: socket.socket) -> str:
    """For a browser."""
    host, port = at.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def readers(at: socket.socket) -> str:
    """Those whom nothing keeps from the page."""
    host: str = at.getsockname()[0]
    if ipaddress.ip_address(host).is_loopback:
        return "every user of this machine"
    return f"whoever reaches {host}"


@contextmanager
def serving(run: WatchedRun) -> Generator[str]:
    """In a thread of this process, at any port of this machine; its address."""
    with listener("127.0.0.1:0") as at:
        server = _server(run, at, [])
        # Not left to itself: a thread that draws while Python ends takes the process down.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]})
        thread.start()
        try:
            yield address(at)
        finally:
            server.should_exit = True
            thread.join()


def serve(run: WatchedRun, at: socket.socket, hosts: list[str]) -> None:
    """Until Ctrl-C or SIGTERM."""
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
            log_level="warning",
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_END_SECONDS,
        )
    )
