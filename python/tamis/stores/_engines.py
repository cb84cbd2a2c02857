"""SQLAlchemy engines and Django connections, accepted where a path or a connection string is.

A store opens its own connections, so it takes only the address of the database from them. They are
recognized by their attributes: neither package is imported.
"""

from __future__ import annotations

import os
from typing import Any

from tamis.stores.contract import check_address

_OR = ", an engine of SQLAlchemy or a connection of Django"
_FIELDS = ("HOST", "PORT", "USER", "PASSWORD")


def sqlite_path(database: Any) -> Any:
    """Return the path of an SQLite database that an engine or a Django connection is for."""
    if _is_engine(database):
        _check(database, database.dialect.name, "sqlite")
        path = database.url.database
    elif _is_django(database):
        _check(database, database.vendor, "sqlite")
        path = str(database.settings_dict["NAME"])
    else:
        return check_address("path", database, str | bytes | os.PathLike, "a path" + _OR)
    if not path or path == ":memory:" or path.startswith("file:"):
        raise ValueError(
            f"path must be a database in a file, not {path or ':memory:'!r} of "
            f"{_name(database)}: the store opens the file with a connection of its own"
        )
    return path


def postgres_conninfo(database: Any) -> Any:
    """Return the connection string of an engine or a Django connection, if it is one."""
    if _is_engine(database):
        _check(database, database.dialect.name, "postgresql")
        fields = database.url.translate_connect_args(username="user", database="dbname")
        options: Any = database.url.query
    elif _is_django(database):
        _check(database, database.vendor, "postgresql")
        settings = database.settings_dict
        fields = {name.lower(): settings.get(name) for name in _FIELDS}
        fields["dbname"], options = settings["NAME"], settings.get("OPTIONS") or {}
    else:
        return check_address("conninfo", database, str, "a connection string" + _OR)
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import Conninfo

    # Options of the driver rather than of libpq are about connections that the store does not make.
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    fields |= {k: v for k, v in options.items() if k in known and isinstance(v, (str, int))}
    return make_conninfo(**{k: v for k, v in fields.items() if v not in (None, "")})


def _is_engine(database: Any) -> bool:
    return hasattr(database, "dialect") and hasattr(database, "url")


def _is_django(database: Any) -> bool:
    return hasattr(database, "settings_dict") and hasattr(database, "vendor")


def _name(database: Any) -> str:
    return "an engine of SQLAlchemy" if _is_engine(database) else "a connection of Django"


def _check(database: Any, found: str, wanted: str) -> None:
    if found != wanted:
        raise ValueError(f"{_name(database)} must be for {wanted}, not for {found}")
