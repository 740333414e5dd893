"""A server that speaks as much of Cloud Storage's JSON interface as TensorStore uses: list, read, write, delete."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class FakeBucket:
    """objects: name -> (contents, generation). refuse: the status that every request gets, if any."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.requests: list[str] = []  # "GET name", "POST name", …
        self.refuse: int | None = None
        self.generation = 0


def handler(bucket: FakeBucket) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"{}", generation: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if generation is not None:
                self.send_header("x-goog-generation", str(generation))
            self.end_headers()
            self.wfile.write(body)

        def handle_request(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if bucket.refuse is not None:
                return self.answer(bucket.refuse)
            name = unquote(parts.path.partition("/o/")[2]) or query.get("name", "")
            bucket.requests.append(f"{self.command} {name}")
            if self.command == "POST":
                bucket.generation += 1
                bucket.objects[name] = (sent, bucket.generation)
                return self.answer(200, json.dumps({"name": name, "generation": str(bucket.generation)}).encode())
            if not name:
                first, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
                found = [n for n in sorted(bucket.objects) if first <= n < end]
                return self.answer(200, json.dumps({"items": [{"name": n} for n in found]}).encode())
            if name not in bucket.objects:
                return self.answer(404)
            if self.command == "DELETE":
                del bucket.objects[name]
                return self.answer(204, b"")
            return self.answer(200, *bucket.objects[name])

        do_GET = do_POST = do_DELETE = handle_request  # noqa: N815 - names that the library calls

    return Handler


@contextmanager
def serve() -> Iterator[tuple[FakeBucket, str]]:
    """(the bucket, its address)."""
    bucket = FakeBucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(bucket))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield bucket, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
