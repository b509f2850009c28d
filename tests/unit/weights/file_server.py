# SPDX-License-Identifier: Apache-2.0
"""A file server on loopback that can resume, break off and stall, and remembers what it was asked."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FileServer(ThreadingHTTPServer):
    """Serves `files` (path -> bytes) by GET and HEAD, with ETag and Range."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files: dict[str, bytes] = {}
        self.headers_of: dict[str, dict[str, str]] = {}  # extra headers by path
        self.status_of: dict[str, int] = {}  # refusals by path
        self.tokens: list[str | None] = []  # Authorization of every request
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.break_after: list[int] = []  # bytes after which the next answers for .gguf files break off
        self.stall_after: int | None = None  # bytes after which an answer stalls until the client is gone
        self.with_etag = True
        self.with_range = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def ranges(self) -> list[str | None]:
        return [asked for method, _, asked in self.asked if method == "GET"]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients are killed on purpose here: no traceback for that."""


class _Answer(BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append((self.command, self.path, asked))
        path = self.path.split("?")[0]
        server.tokens.append(self.headers.get("Authorization"))
        if path not in server.files:
            self._refuse(path)
            return
        data = server.files[path]
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        start = self._start(asked, etag, len(data)) if server.with_range else None
        self.send_response(200 if start is None else 206)
        self.send_header("Content-Length", str(len(data) - (start or 0)))
        if start is not None:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if server.with_etag:
            self.send_header("ETag", etag)
        for name, value in server.headers_of.get(path, {}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self._send(data[start or 0 :])

    def _refuse(self, path: str) -> None:
        self.send_response(self.server.status_of.get(path, 404))
        for name, value in self.server.headers_of.get(path, {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _start(self, asked: str | None, etag: str, size: int) -> int | None:
        match = re.fullmatch(r"bytes=(\d+)-\d*", asked or "")
        if match is None or self.headers.get("If-Range", etag) != etag or int(match[1]) >= size:
            return None
        return int(match[1])

    def _send(self, data: bytes) -> None:
        if self.server.break_after and ".gguf" in self.path:
            self.wfile.write(data[: self.server.break_after.pop(0)])
            self.close_connection = True
            return
        if self.server.stall_after is not None:
            self.wfile.write(data[: self.server.stall_after])
            self.wfile.flush()
            time.sleep(60)
            return
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def running_file_server() -> Iterator[FileServer]:
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
