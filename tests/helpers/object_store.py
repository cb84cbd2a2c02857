"""An S3 server on the loopback (moto's) that counts requests and bytes and can be made to fail."""

import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

moto_server = pytest.importorskip("moto.server")
from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: E402

KEY, SECRET = "AKIAOPENSESAME0001", "wJalrUnlikelyToBeFoundElsewhere0002"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: str
    headers: dict
    received: int
    sent: int
    status: int

    @property
    def kind(self):
        """The operation: GET of an object and of a listing differ."""
        if self.method == "GET" and ("list-type" in self.query or self.path.count("/") < 2):
            return "LIST"
        return self.method


@dataclass
class S3:
    """The server. ``faults`` are called in turn: one per request whose method and path match."""

    port: int = 0
    requests: list = field(default_factory=list)
    faults: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def counted(self):
        """The requests within a block."""
        found, before = [], len(self.requests)
        yield found
        found += self.requests[before:]

    def fail(self, fault, times=1, method="GET", path="."):
        """Let the next requests of a method to paths that match a pattern fail."""
        self.faults += [(method, re.compile(path), fault)] * times

    def __call__(self, environ, start_response):
        app = self.app
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self.lock:
            at = next(
                (i for i, (m, p, _) in enumerate(self.faults) if m == method and p.search(path)),
                None,
            )
            fault = None if at is None else self.faults.pop(at)[2]
        answer = {}

        def keep(status, headers, exc_info=None):
            answer.update(status=status, headers=headers)

        body = b"".join(app(environ, keep))
        status, headers = answer["status"], answer["headers"]
        if fault == "error":
            status, headers = "503 Slow Down", [("Content-Type", "text/plain")]
            body = b"busy"
        elif fault == "stall":
            time.sleep(60)
        elif fault == "cut":  # the connection ends before what Content-Length promises
            body = body[: len(body) // 2]
        elif fault == "short":  # fewer bytes than asked for, in a valid answer
            body = body[: len(body) // 2]
            headers = [(n, v) for n, v in headers if n.lower() != "content-length"]
            headers.append(("Content-Length", str(len(body))))
        sent = 0 if method == "HEAD" else len(body)
        named = {k[5:]: v for k, v in environ.items() if k.startswith("HTTP_")}
        received = int(environ.get("CONTENT_LENGTH") or 0)
        self.requests.append(
            Request(method, path, environ["QUERY_STRING"], named, received, sent, int(status[:3]))
        )
        start_response(status, headers)
        return [body]


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type, message, *args):
        pass


@contextmanager
def running():
    """Start a server with an empty bucket named ``lake``."""
    s3 = S3()
    s3.app = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)
    server = make_server("127.0.0.1", 0, s3, threaded=True, request_handler=_Quiet)
    server.daemon_threads = True
    server.block_on_close = False
    s3.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        s3fs_of(s3).call_s3("create_bucket", Bucket="lake")
        yield s3
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def environment(s3):
    """The variables by which clients find the server."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def options_of(s3, **options):
    """``storage_options`` for the server."""
    return {
        "aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "aws_endpoint_url": s3.endpoint,
        "aws_allow_http": "true", "aws_region": "us-east-1", **options,
    }  # fmt: skip


def s3fs_of(s3, **options):
    import s3fs

    return s3fs.S3FileSystem(
        key=KEY, secret=SECRET, endpoint_url=s3.endpoint, skip_instance_cache=True,
        client_kwargs={"region_name": "us-east-1"}, **options,
    )  # fmt: skip


def arrow_of(s3, **options):
    from pyarrow import fs

    return fs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, scheme="http", region="us-east-1",
        endpoint_override=f"127.0.0.1:{s3.port}", **options,
    )  # fmt: skip
