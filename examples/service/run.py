"""A small web service that looks up users by email, with a guard in front of its database.

    python examples/service/run.py
    python examples/service/run.py --database postgresql://localhost/shop

Without a server it uses SQLite, in a temporary folder. It creates and fills the table
``tamis_example_users`` if it does not exist, and prints the URLs of the service, its metrics for
Prometheus, and the guard's live page. Ctrl-C ends it.

``/users/{email}`` asks the guard first, ``/unguarded/users/{email}`` only the database: `load.py`
compares the two.
"""

import argparse
import asyncio
import sqlite3
import tempfile
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import prometheus_client
import uvicorn
from fastapi import FastAPI, HTTPException, Response

import tamis

TABLE = "tamis_example_users"
COLUMNS = {"table": TABLE, "key": "email", "value": "name"}


def rows(users):
    return ((f"user{i}@example.org", f"User {i}") for i in range(users))


class SQLite:
    """A database in a file. Its driver blocks, so that reads run in threads."""

    def __init__(self, path):
        self.path = path

    def create(self, users):
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (email TEXT PRIMARY KEY, name TEXT)")
            db.executemany(f"INSERT OR IGNORE INTO {TABLE} VALUES (?, ?)", rows(users))

    def store(self):
        return tamis.stores.SQLite(self.path, **COLUMNS)

    async def open(self):
        self.db = sqlite3.connect(self.path, check_same_thread=False)

    async def name(self, email):
        query = f"SELECT name FROM {TABLE} WHERE email = ?"
        row = await asyncio.to_thread(lambda: self.db.execute(query, (email,)).fetchone())
        return row and row[0]

    async def close(self):
        self.db.close()


class Postgres:
    """A PostgreSQL database, read through a pool of asynchronous connections."""

    def __init__(self, conninfo):
        self.conninfo = conninfo

    def create(self, users):
        import psycopg

        with psycopg.connect(self.conninfo) as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (email text PRIMARY KEY, name text)")
            db.cursor().executemany(
                f"INSERT INTO {TABLE} VALUES (%s, %s) ON CONFLICT DO NOTHING", list(rows(users))
            )

    def store(self):
        return tamis.stores.Postgres(self.conninfo, **COLUMNS)

    async def open(self):
        from psycopg_pool import AsyncConnectionPool

        self.pool = AsyncConnectionPool(self.conninfo, min_size=1, max_size=8, open=False)
        await self.pool.open()

    async def name(self, email):
        async with self.pool.connection() as db:
            query = f"SELECT name FROM {TABLE} WHERE email = %s"
            row = await (await db.execute(query, (email,))).fetchone()
        return row and row[0]

    async def close(self):
        await self.pool.close()


def create_app(database, page_port=0):
    """Create the service; its guard may be 100 ms behind what others write to the table."""

    @asynccontextmanager
    async def running(app):
        await database.open()
        users = tamis.AsyncGuard(database.store(), max_staleness="100ms", name="users")
        async with users as app.state.users:
            app.state.registry = prometheus_client.CollectorRegistry()
            app.state.registry.register(tamis.metrics.Collector(users))
            print(f"page       {users.serve(page_port).url}", flush=True)
            yield
        await database.close()

    app = FastAPI(lifespan=running, title="users")

    @app.get("/users/{email}")
    async def guarded(email: str):
        return found(email, await app.state.users.get(email))

    @app.get("/unguarded/users/{email}")
    async def unguarded(email: str):
        return found(email, await database.name(email))

    @app.put("/users/{email}", status_code=204)
    async def put(email: str, name: str):
        await app.state.users.put(email, name)

    @app.get("/metrics")
    def metrics():
        text = prometheus_client.generate_latest(app.state.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    return app


def found(email, name):
    if name is None:
        raise HTTPException(404, f"no user {email}")
    return {"email": email, "name": name}


class Server(uvicorn.Server):
    """Prints where it serves, since port 0 is any free one."""

    async def startup(self, sockets=None):
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"metrics    http://{host}:{port}/metrics", flush=True)
        print(f"service    http://{host}:{port}/users/user1@example.org", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--database", help="SQLite file or PostgreSQL URL (default: a new SQLite file)"
    )
    parser.add_argument("--users", type=int, default=100_000, help="users to create")
    parser.add_argument("--port", type=int, default=8000, help="port of the service")
    parser.add_argument("--page-port", type=int, default=8001, help="port of the live page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tamis-example-") as folder:
        where = given.database or str(Path(folder) / "users.db")
        url = where.startswith(("postgres://", "postgresql://", "host="))
        database = Postgres(where) if url else SQLite(where)
        database.create(given.users)
        config = uvicorn.Config(
            create_app(database, given.page_port), port=given.port, log_level="warning"
        )
        with suppress(KeyboardInterrupt):  # which uvicorn raises again once it has shut down
            Server(config).run()


if __name__ == "__main__":
    main()
