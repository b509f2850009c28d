# SPDX-License-Identifier: Apache-2.0
"""One file over HTTP. A download that broke off goes on where it stopped if the server still has
the same file, which its ETag or Last-Modified tells; else it begins again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.progress import byte_bar, say
from headrace.weights.catalogue.saving import CHUNK_BYTES, size_of

if TYPE_CHECKING:
    import httpx

MAX_TRIES = 5  # in a row without a byte
FIRST_PAUSE_S = 0.5  # doubled for each further try


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to fetch. Every file must begin with `magic`: sign-in pages and the like do not."""

    url: str
    target: Path
    magic: bytes
    headers: Mapping[str, str]  # sent to the url's own host only


def download(wanted: Wanted, show: bool) -> None:
    """Bring `wanted.target` here whole. Until it is whole, its bytes are in TARGET.part. As long as some
    bytes come, broken connections are taken up again; after MAX_TRIES in vain it is an error."""
    import httpx  # here: only pulling needs it

    target, part = wanted.target, part_of(wanted.target)
    tries_left = MAX_TRIES
    while not target.exists():
        before = size_of(part)
        try:
            with httpx.Client(follow_redirects=True, timeout=httpx.Timeout(30.0, connect=15.0)) as client:
                _try(client, wanted, show)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise CatalogueError(f"{target.name}: not a usable URL: {error}") from error
        except httpx.TransportError as error:
            what = f"{target.name}: {type(error).__name__}: {error}"
            tries_left = tries_left - 1 if size_of(part) <= before else MAX_TRIES
            if tries_left == 0:
                raise CatalogueError(f"{what}. What has arrived is kept: pull again to go on") from error
            say(f"{what}; trying again", show)
            time.sleep(FIRST_PAUSE_S * 2 ** (MAX_TRIES - tries_left))


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _try(client: httpx.Client, wanted: Wanted, show: bool) -> None:
    target = wanted.target
    part, tag_file = part_of(target), target.with_name(target.name + ".tag")
    have, tag = _begun(part, tag_file)
    headers = {**wanted.headers, "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={have}-", "If-Range": tag} if have else {}
    with client.stream("GET", wanted.url, headers=headers) as response:
        if have and not _goes_on(response, have, tag):
            part.unlink()
            if response.status_code != 200:  # a part of another file, or no such part: ask for all of it
                return _try(client, wanted, show)
            have = 0
        if response.status_code not in (200, 206):
            raise CatalogueError(
                f"{target.name}: the server says {response.status_code} {response.reason_phrase}"
            )
        tag_file.write_text(_tag(response), encoding="utf-8")
        length = response.headers.get("content-length")
        total = have + int(length) if length is not None else None
        _append(part, response.iter_bytes(CHUNK_BYTES), wanted.magic, total, show)
    part.replace(target)
    tag_file.unlink()


def _begun(part: Path, tag_file: Path) -> tuple[int, str]:
    """Bytes that an earlier try left and the tag of the file they belong to; (0, "") when the tag is
    unknown, since such bytes cannot be trusted to belong to what the server has now."""
    try:
        tag = tag_file.read_text(encoding="utf-8")
        have = part.stat().st_size if tag else 0
    except FileNotFoundError:
        have, tag = 0, ""
    if not have:
        part.unlink(missing_ok=True)
    return (have, tag) if have else (0, "")


def _tag(response: httpx.Response) -> str:
    """A strong ETag, else Last-Modified: the two that If-Range accepts."""
    etag: str = response.headers.get("etag", "")
    if etag and not etag.startswith("W/"):
        return etag
    return str(response.headers.get("last-modified", ""))


def _goes_on(response: httpx.Response, have: int, tag: str) -> bool:
    """Whether the answer is the rest of the very file that we hold the beginning of."""
    same_place = response.headers.get("content-range", "").startswith(f"bytes {have}-")
    return response.status_code == 206 and same_place and _tag(response) in ("", tag)


def _append(part: Path, chunks: Iterator[bytes], magic: bytes, total: int | None, show: bool) -> None:
    label = part.name.removesuffix(".part")
    with part.open("ab") as file, byte_bar(label, total, show, file.tell()) as bar:
        for chunk in chunks:
            if file.tell() == 0 and not chunk.startswith(magic):
                raise CatalogueError(
                    f"{label}: what the server sent is no {magic.decode()} file: it begins {chunk[:16]!r}"
                )
            file.write(chunk)
            bar.update(len(chunk))
        file.flush()
        os.fsync(file.fileno())
        if file.tell() == 0 or (total is not None and file.tell() != total):
            raise CatalogueError(
                f"{label}: {file.tell()} bytes came in place of {total}: pull again to go on"
            )
