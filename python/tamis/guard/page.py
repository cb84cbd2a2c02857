"""The page of a guard: its statistics and their course, refreshed every second.

An HTTP server in a thread serves one document (`page.html`, which needs no other file) and the data
for it. On the loopback every user of the machine can read it; a browser is kept from reading it for
another site by a check of the ``Host`` header, since a site may let its own name point to this
machine. Elsewhere it is served only with a token, which every request must bring.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import json
import math
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tamis._checks import check_int

if TYPE_CHECKING:
    from tamis.guard.statistics import GuardStats
    from tamis.guard.sync import Guard

_INTERVAL = 1.0
"""Seconds between points of the series."""

_COMPARE_EVERY, _COMPARE_SHARE = 10.0, 50
"""Seconds between comparisons of filters, and at least this many times as long as one takes."""

_MIN_TOKEN = 16

_MAX_CONNECTIONS, _MAX_SECONDS = 32, 10.0
"""Connections at a time, and seconds for each, so that clients who are slow, or many, keep neither
threads nor memory. Both hold before a token is checked."""

_MAX_REQUEST = 16 << 10
"""Bytes of a request, with its headers."""

_MAX_POINTS = 600
_MAX_QUERIES = 20_000
_MIN_QUERIES = 500
"""Sampled queries for absent keys that a comparison of filters needs."""
_MAX_KEY, _MAX_PARTS = 64, 16
"""Characters of a sampled key, in whose place a digest is kept if it is longer, and its parts."""


class Page:
    """A web page that shows a guard, until the page or the guard is closed."""

    def __init__(self, guard: Guard, port: int | range, host: str, token: str | None) -> None:
        """Start to serve; port 0 is any free one, and of a range it is the first free one."""
        ports: Any = port if isinstance(port, range) and port else [port]
        for each in ports:
            loopback = check_address(each, host, token)
        self._guard, self.sample, self._series = guard, Sample(), Series()
        self._compared: dict[str, Any] | None = None
        self._closed = threading.Event()

        class Handler(_Handler):
            page, needs_token, needs_local_host = self, token, loopback and token is None

        class Server(_Server):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        for each in ports:
            try:
                self._server = Server((host, each), Handler)
                break
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                if taken and each != ports[-1]:
                    continue
                hint = "; for workers of one service, pass a range of ports" if taken else ""
                raise type(error)(
                    error.errno, f"cannot serve on port {each} of {host}: {error.strerror}{hint}"
                ) from None
        shown = f"[{host}]" if ":" in host else host
        query = f"?token={token}" if token else ""
        self.url = f"http://{shown}:{self._server.server_address[1]}/{query}"
        """Where the page is, with its token if it has one."""
        guard.log.info("serves its page at %s", self.url.partition("?")[0])
        self._series.record(guard.stats)
        self._threads = [
            threading.Thread(target=work, name=f"tamis page {name}", daemon=True)
            for name, work in (
                ("server", self._server.serve_forever),
                ("series", self._record),
                ("comparison", self._compare),
            )
        ]
        for thread in self._threads:
            thread.start()

    def data(self) -> dict[str, Any]:
        """Return the data of the page, ready for JSON."""
        guard, stats = self._guard, self._guard.stats
        points = self._series.read()
        return {
            "name": guard.name,
            "filter": type(guard.filter).__name__,
            "keys": len(guard.filter),
            "store": type(guard.store).__name__,
            "stats": asdict(stats)
            | {
                "observed_fpr": stats.observed_fpr,
                "interval": [x if math.isfinite(x) else None for x in stats.interval],
                "staleness": stats.staleness if math.isfinite(stats.staleness) else None,
            },
            "series": {
                name: [getattr(point, name) for point in points] for name in points[0]._fields
            },
            "others": self._compared,
        }

    def close(self) -> None:
        """End the page."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._guard.page_closed()

    def _record(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self._series.record(self._guard.stats)

    def _compare(self) -> None:
        seen, pause = 0, _INTERVAL
        while not self._closed.wait(pause):
            pause, queries = _INTERVAL, self.sample.read()
            if len(queries) == seen:
                continue
            start, seen = time.monotonic(), len(queries)
            compared = compare_filters(self._guard, queries)
            if compared is not None:
                self._compared = compared
                pause = max(_COMPARE_EVERY, _COMPARE_SHARE * (time.monotonic() - start))

    def __repr__(self) -> str:
        return f"<tamis.guard.Page of {self._guard.name!r} at {self.url.partition('?')[0]}>"


class Point(NamedTuple):
    """The statistics of a guard at a time, in seconds since the page was opened."""

    time: float
    queries: int
    reads_saved: int
    false_positives: int
    passed: int
    adaptations: int
    rebuilds: int
    memory: int
    trusted: bool
    expected_fpr: float


class Series:
    """The statistics over time; when there are too many points, every other one is dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._points: list[Point] = []
        self._step, self._count = 1, 0

    def record(self, stats: GuardStats) -> None:
        """Add the statistics as they are now."""
        fields = {name: getattr(stats, name) for name in Point._fields[1:]}
        with self._lock:
            if self._count % self._step == 0:
                self._points.append(Point(time.monotonic() - self._start, **fields))
            self._count += 1
            if len(self._points) > _MAX_POINTS:
                del self._points[1::2]
                self._step *= 2

    def read(self) -> list[Point]:
        """Return the points so far."""
        with self._lock:
            return list(self._points)


class Sample:
    """Every n-th query for an absent key; when there are too many, n is doubled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: list[Any] = []
        self._step, self._count = 1, 0

    def add(self, keys: Iterable[Any]) -> None:
        """Add keys that the store does not have."""
        with self._lock:
            for key in keys:
                self._count += 1
                if self._count % self._step == 0:
                    self._queries.append(_shortened(key))
                    if len(self._queries) >= _MAX_QUERIES:
                        self._queries = self._queries[1::2]
                        self._step *= 2

    def record(self, keys: Iterable[Any], values: Iterable[Any]) -> None:
        """Add the keys of a query that have no value."""
        self.add(key for key, value in zip(keys, values, strict=True) if value is None)

    def read(self) -> list[Any]:
        """Return the sampled queries."""
        with self._lock:
            return list(self._queries)


def _shortened(key: Any) -> Any:
    """Return a key, or a digest in its place if it is long: it is only compared with others."""
    if isinstance(key, tuple):
        return tuple(map(_shortened, key[:_MAX_PARTS]))
    if not isinstance(key, str | bytes) or len(key) <= _MAX_KEY:
        return key
    data = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    return hashlib.blake2b(data, digest_size=_MAX_KEY // 4).hexdigest()


def compare_filters(guard: Guard, queries: list[Any]) -> dict[str, Any] | None:
    """Predict the false-positive rates of other filters of the same size for these queries.

    `None` if there are too few queries, or no filter of this size fits.
    """
    from tamis import Workload, advise

    plain = [guard.to_plain(key) for key in queries]
    kinds = [[key for key in plain if isinstance(key, kind)] for kind in (bytes, int)]
    known: Any = max(kinds, key=len)  # a workload has keys of one type
    filter, stats = guard.filter, guard.stats
    keys = len(filter)
    if len(known) < _MIN_QUERIES or not keys:
        return None
    needs = {"store"}
    if filter.inserts:
        needs.add("insert")
    try:
        advice = advise(
            keys,
            Workload.from_queries(known),
            bits_per_key=filter.size_in_bits / keys,
            expected_queries=max(stats.negatives, len(known)),
            present=stats.true_positives / max(stats.queries, 1),
            needs=needs,
        )
    except ValueError:
        return None
    return {
        "queries": len(known),
        "choices": [
            {
                "name": choice.name,
                "filter": choice.filter,
                "rate": float(choice.expected_fpr),
                "bits_per_key": float(choice.bits_per_key),
                "reason": choice.reason,
            }
            for choice in advice.choices
        ],
    }


def check_address(port: int, host: str, token: str | None) -> bool:
    """Return whether a host is the loopback; raise `ValueError` if it must not be served."""
    check_int("port", port, 65535)
    if token is not None and (len(token) < _MIN_TOKEN or not token.isascii()):
        raise ValueError(
            f"token must have at least {_MIN_TOKEN} characters of ASCII, such as one of "
            "secrets.token_urlsafe()"
        )
    if token is not None and not all(c.isalnum() or c in "-_.~" for c in token):
        raise ValueError("token must consist of letters, digits and the characters -_.~")
    loopback = _is_loopback(host)
    if not loopback and token is None:
        raise ValueError(
            f"host must be the loopback (127.0.0.1, ::1 or localhost), not {host!r}, unless a "
            "token= is passed: the page shows the names and statistics of the guard"
        )
    return loopback


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(ThreadingHTTPServer):
    """A server of a limited number of connections, each for a limited time."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._connections: dict[Any, float] = {}
        """When each is closed at the latest."""
        super().__init__(*arguments)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether to answer a client, or to hang up as there are too many."""
        if len(self._connections) >= _MAX_CONNECTIONS:
            return False
        self._connections[request] = time.monotonic() + _MAX_SECONDS
        return True

    def service_actions(self) -> None:
        """Hang up on clients whose time is over, also on those who send a byte now and then."""
        at = time.monotonic()
        self._hang_up([request for request, end in [*self._connections.items()] if at >= end])

    def _hang_up(self, requests: list[Any]) -> None:
        for request in requests:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Close the server and its connections."""
        super().server_close()
        self._hang_up([*self._connections])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that hung up, or was hung up on."""


class _Handler(BaseHTTPRequestHandler):
    page: Page
    needs_token: str | None
    needs_local_host: bool
    server_version, sys_version = "tamis", ""

    def setup(self) -> None:
        """Read no more than a request may have."""
        super().setup()
        self.rfile = _Limited(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        try:
            where = urlsplit(self.path)
        except ValueError:
            self._answer(400, "text/plain", "the address is malformed")
            return
        if self.needs_local_host and not _is_loopback(_hostname(self.headers.get("Host", ""))):
            self._answer(403, "text/plain", "this page is served to localhost only")
        elif self.needs_token and not self._has_token(where.query):
            self._answer(401, "text/plain", "a token is needed: …/?token=…")
        elif where.path == "/":
            nonce = secrets.token_urlsafe(16)
            text = files("tamis.guard").joinpath("page.html").read_text(encoding="utf-8")
            self._answer(200, "text/html; charset=utf-8", text.replace("NONCE", nonce), nonce)
        elif where.path == "/data":
            data = json.dumps(self.page.data(), allow_nan=False)
            self._answer(200, "application/json", data)
        else:
            self._answer(404, "text/plain", "not found")

    def _has_token(self, query: str) -> bool:
        given = parse_qs(query).get("token", [""])[0]
        scheme, _, bearer = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = bearer
        expected = self.needs_token or ""
        return hmac.compare_digest(given.encode(), expected.encode())

    def _answer(self, status: int, kind: str, text: str, nonce: str | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        scripts = f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; " if nonce else ""
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", f"default-src 'none'; {scripts}connect-src 'self'"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the page requests new data every second."""


def _hostname(header: str) -> str:
    """Return the host of a ``Host`` header, without port and brackets."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class _Limited:
    """The first bytes of a request; what comes after them is not read."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, _MAX_REQUEST
        self.close = file.close

    def readline(self, limit: int = _MAX_REQUEST) -> bytes:
        """Return the next line, or the part of it that may be read."""
        line: bytes = self._file.readline(min(limit, self._left))
        self._left -= len(line)
        return line
