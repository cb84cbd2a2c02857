"""Keys read as integers (``--integers``)."""

from __future__ import annotations

from typing import Any

from tamis._columns import pyarrow


def parse_integers(name: str, lines: list[bytes]) -> list[int]:
    """Parse decimal integers, with or without a sign and spaces around them."""
    try:
        numbers = list(map(int, lines))
    except ValueError as error:
        wrong = str(error).partition(": ")[2]
        raise ValueError(f"--integers is set, but {name} contains {wrong}") from None
    if b"_" in b"".join(lines):  # Python accepts 1_000
        wrong = next(repr(line) for line in lines if b"_" in line)
        raise ValueError(f"--integers is set, but {name} contains {wrong}")
    return numbers


def parse_column(name: str, column: Any) -> Any:
    """Parse a column of text as `parse_integers` does."""
    arrow = pyarrow("a table")
    from pyarrow import compute

    column = column.cast(arrow.large_string())
    # Without the pattern, Arrow would accept 0x10.
    if compute.all(compute.match_substring_regex(column, "^-?[0-9]+$"), min_count=0).as_py():
        for type_ in (arrow.int64(), arrow.uint64()):
            try:
                return column.cast(type_)
            except arrow.ArrowInvalid:
                continue
    # The rest: an error, a rare notation, or numbers that do not fit into one Arrow integer type.
    numbers = parse_integers(name, [text.encode() for text in column.drop_null().to_pylist()])
    for number in numbers:
        if not -(2**63) <= number < 2**64:
            raise ValueError(
                f"--integers is set, but {name} contains {number}: an integer key is from "
                "-2**63 to 2**64-1"
            )
    found = iter(numbers)
    integers = [next(found) if valid else None for valid in column.is_valid().to_pylist()]
    return arrow.array(integers, arrow.decimal128(20, 0))  # equal to the integers as keys
