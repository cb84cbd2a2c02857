"""Keys within lines: fields of a web server's log, matches of a pattern, values of JSON objects."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

LogFormat = Literal["combined", "common"]

MAX_SEARCHED = 1 << 16
"""Maximum length in bytes of a line that is searched for a key: the time of a pattern of the user
may grow with a power of the length."""

FIELDS = ("host", "user", "time", "method", "path", "status", "size", "referer", "agent")
"""The fields of a line in the combined log format; the common format ends with the size."""

# Possessive quantifiers (++, *+) never give back what they matched, so the time is linear.
_REQUEST = re.compile(
    rb'\] "(?P<method>[A-Z]++) (?P<path>[^ "]++)[^"]*+" (?P<status>\d{3}) (?P<size>\d++|-)'
    rb'(?: "(?P<referer>[^"]*+)" "(?P<agent>[^"]*+)")?'
)


def parse_log_line(line: bytes) -> dict[str, bytes | None] | None:
    """Return the fields of a line of a web server's log, or None if it is none.

    Anything may precede the host, such as the name of a virtual host.

    >>> line = b'192.0.2.7 - ada [10/Oct/2024:13:55:36 +0000] "GET /a HTTP/1.1" 200 512'
    >>> fields = parse_log_line(line)
    >>> fields["host"], fields["path"], fields["agent"]
    (b'192.0.2.7', b'/a', None)
    """
    begin = 0  # each request is searched for its host behind the one before: no byte twice
    for request in _REQUEST.finditer(line):
        client = _parse_client(line, begin, request.start())
        if client is not None:
            return {**client, **request.groupdict()}
        begin = request.start()
    return None


def _parse_client(line: bytes, begin: int, end: int) -> dict[str, bytes] | None:
    """Parse ``host ident user [time``, the end of this part of a line."""
    bracket = line.rfind(b"[", begin, end)
    if bracket < begin or end - bracket < 2 or b"]" in line[bracket:end]:
        return None
    words = line[begin:bracket].rsplit(b" ", 3)
    if len(words) != 4 or words[3] or any(len(word.split()) != 1 for word in words[1:3]):
        return None
    before, _, user, _ = words
    if not before or before[-1:].isspace():
        return None
    return {"host": before.split()[-1], "user": user, "time": line[bracket + 1 : end]}


@dataclass(frozen=True)
class LogLines:
    """Fields of a web server's log."""

    columns: Sequence[str]
    option: ClassVar[str] = "--log-format"

    def find(self, line: bytes) -> tuple[Any, ...] | None:
        """Return the fields of a line, or None if one of them is missing or empty."""
        fields = parse_log_line(line)
        values = tuple(fields[name] for name in self.columns) if fields else ()
        return values if values and all(values) else None


@dataclass(frozen=True)
class PatternLines:
    """Matches of a regular expression: its first group, or all of it if there is no group."""

    pattern: re.Pattern[bytes]
    columns: ClassVar[Sequence[str]] = ("the match",)
    option: ClassVar[str] = "--regex"

    def find(self, line: bytes) -> tuple[Any, ...] | None:
        """Return the match in a line, or None if there is none or it is empty."""
        match = self.pattern.search(line)
        value = match[min(self.pattern.groups, 1)] if match else None
        return (value,) if value else None


@dataclass(frozen=True)
class JsonLines:
    """Values of JSON objects, one object per line; a value that is missing or null has no key."""

    name: str
    columns: Sequence[str]

    def find(self, line: bytes) -> tuple[Any, ...] | None:
        """Return the values of an object, or None if one of them is null."""
        record = parse_json_line(self.name, line)
        values = tuple(record.get(column) for column in self.columns)
        if any(value is None for value in values):
            return None
        for column, value in zip(self.columns, values, strict=True):
            if type(value) not in (str, int):
                raise ValueError(
                    f"{self.name} has {json.dumps(value)[:80]} in {column!r}: a key is text or an "
                    "integer"
                )
        return values


def parse_json_line(name: str, line: bytes) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not a file of JSON lines: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{name} must have a JSON object in each line, not {line[:80]!r}")
    return record


LineKeys: TypeAlias = LogLines | PatternLines | JsonLines
"""How to find the key in a line."""


class Searched(NamedTuple):
    """The lines of a batch that have a key, and why others do not."""

    found: list[bytes]
    unmatched: int
    too_long: int


def search_lines(keys: LogLines | PatternLines, lines: list[bytes]) -> Searched:
    """Return the lines that have a key; longer ones than `MAX_SEARCHED` are not searched."""
    filled = [line for line in lines if line]
    short = [line for line in filled if len(line) <= MAX_SEARCHED]
    found = [line for line in short if keys.find(line) is not None]
    return Searched(found, len(short) - len(found), len(filled) - len(short))
