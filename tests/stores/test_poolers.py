"""A guard behind a pooler in transaction mode, which gives every transaction any connection."""

import contextlib
import select
import socket
import struct
import threading

import pytest
from servers import postgres_url  # noqa: F401

import tamis

SETTINGS = "SELECT name FROM pg_settings WHERE source = 'session' ORDER BY name"
NAMES = {"table": "pooled.people", "key": "email", "value": "name"}


class Wire:
    """One end of a connection, with messages of PostgreSQL's protocol."""

    def __init__(self, socket):
        self.socket, self._buffer = socket, b""

    def receive(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError
        self._buffer += data

    def take(self, start=1):
        """Return the type of a message and the message, or None if it has not arrived."""
        if len(self._buffer) < start + 4:
            return None
        end = start + struct.unpack("!i", self._buffer[start : start + 4])[0]
        if len(self._buffer) < end:
            return None
        message, self._buffer = self._buffer[:end], self._buffer[end:]
        return message[:1], message

    def message(self, start=1):
        while (found := self.take(start)) is None:
            self.receive()
        return found


class Connection(Wire):
    """A connection of the pooler to the server."""

    def __init__(self, address, startup):
        super().__init__(socket.create_connection(address))
        self.socket.sendall(startup)
        self.greeting = b"".join(message for _, message in self._answer())

    def _answer(self):
        kind = b""
        while kind != b"Z":
            kind, message = self.message()
            yield kind, message

    def relay(self, client, first):
        """Relay the messages of one transaction; return whether the client goes on."""
        waiting, status = 0, b"I"
        (kind, message), sent = first, b""
        while kind != b"X":
            self.socket.sendall(message)
            waiting, sent = waiting + (kind in (b"Q", b"S")), kind
            asked = None
            while asked is None:
                while answer := self.take():
                    client.socket.sendall(answer[1])
                    if answer[0] == b"Z":
                        waiting, status = waiting - 1, answer[1][5:6]
                if sent in (b"Q", b"S") and not waiting and status == b"I":
                    return True
                asked = client.take()
                if asked is None:
                    for wire in select.select([client.socket, self.socket], [], [])[0]:
                        (client if wire is client.socket else self).receive()
            kind, message = asked
        return False

    def query(self, text):
        """Return the values of the first column, as the server writes them."""
        body = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(body) + 4) + body)
        rows = [message for kind, message in self._answer() if kind == b"D"]
        lengths = [struct.unpack("!i", row[7:11])[0] for row in rows]
        return [row[11 : 11 + max(n, 0)] for row, n in zip(rows, lengths, strict=True)]


class Pooler:
    """Gives each transaction the connection that was idle for the longest time."""

    def __init__(self, address, size):
        self._address, self._size = address, size
        self._idle, self._free, self.connections = [], threading.Condition(), []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, opened):
        with contextlib.suppress(ConnectionError, OSError), opened:
            client = Wire(opened)
            _, startup = client.message(0)
            self._connect(startup)
            opened.sendall(self.connections[0].greeting)
            goes_on = True
            while goes_on:
                first = client.message()
                with self._free:
                    self._free.wait_for(lambda: self._idle)
                    connection = self._idle.pop(0)
                goes_on = False
                try:
                    goes_on = connection.relay(client, first)
                finally:
                    if not goes_on:  # it may have left in the middle of a transaction
                        connection.query("ROLLBACK")
                    with self._free:
                        self._idle.append(connection)
                        self._free.notify()

    def _connect(self, startup):
        """Open the connections when the first client comes."""
        with self._free:
            if not self.connections:
                self._idle = [Connection(self._address, startup) for _ in range(self._size)]
                self.connections = [*self._idle]
                self.settings = [each.query(SETTINGS) for each in self.connections]

    def close(self):
        self._listener.close()
        for each in self.connections:
            each.socket.close()


@pytest.fixture
def pooler(postgres_url):  # noqa: F811
    psycopg = pytest.importorskip("psycopg")
    fields = psycopg.conninfo.conninfo_to_dict(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS pooled CASCADE; CREATE SCHEMA pooled")
        db.execute("CREATE TABLE pooled.people (email text PRIMARY KEY, name text)")
        db.execute(
            "INSERT INTO pooled.people SELECT 'person ' || i, 'x' FROM generate_series(1, 900) AS i"
        )
        pooler = Pooler((fields["host"], int(fields["port"])), 3)
        pooler.url = postgres_url.replace(f"port={fields['port']}", f"port={pooler.port}")
        pooler.execute = db.execute
        yield pooler
        pooler.close()


def test_a_guard_behind_a_pooler(pooler):
    url = f"{pooler.url} sslmode=disable gssencmode=disable"
    store = tamis.stores.Postgres(url, **NAMES, prepare=False)
    with tamis.Guard(store, tamis.Telescoping(1000, fpr=0.05)) as g:
        absent = [f"absent {i}" for i in range(300)]
        for _ in range(3):
            assert g.get_many(absent) == [None] * len(absent)
        assert g.get("person 7") == "x"
        g.put("ada", "Ada")
        pooler.execute("INSERT INTO pooled.people VALUES ('alan', 'Alan')")
        assert g.get_many(["ada", "alan"]) == ["Ada", "Alan"]
        pooler.execute("DELETE FROM pooled.people WHERE email = 'alan'")
        g.delete("ada")
        g.rebuild()
        assert g.get_many(["ada", "alan", "person 8"]) == [None, None, "x"]
        assert g.stats.trusted
    for connection, settings in zip(pooler.connections, pooler.settings, strict=True):
        assert connection.query("SELECT name FROM pg_prepared_statements") == []
        assert connection.query(SETTINGS) == settings
        assert connection.query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") == []
