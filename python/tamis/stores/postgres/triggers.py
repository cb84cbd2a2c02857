"""The SQL with which `tamis.stores.Postgres` follows a table that others write.

Triggers write a *journal*: a row holds keys, +1 if they came or −1 if they went, and the writer's
transaction id. Its order means nothing: the changes between two snapshots are the sum per key over
the transactions that committed in between, which the function `changes` computes. So no writer
waits for another, or for a guard.

- Without an active guard the triggers log nothing. Until when one is active is the value of a
  sequence, because a sequence belongs to no transaction: a writer in REPEATABLE READ reads it as it
  is now. A second sequence counts the statements that were not logged; every change check
  returns it.
- Plain tables have statement triggers for INSERT and DELETE, and a row trigger for UPDATE that
  compares the keys. A row that moves to another partition fires no row trigger for UPDATE, so
  partitioned tables have statement triggers only, on the table and on every partition. Statements
  of logical replication fire none of them: row triggers that fire there alone log these.
- Nothing that happens to the table makes a writer's statement fail because of the triggers: a row
  that they cannot read counts as a statement that was not logged. Only reads are inside the block
  that catches errors: a write there would take a subtransaction's id for each statement.
- The journal is three tables, a ring; `base_ring` says which one is written. The oldest is
  truncated when every follower has seen it.

The trigger functions run with the rights of their owner and the search path of whoever writes, so
every name and operator in them is qualified. (``IS DISTINCT FROM`` cannot be.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tamis.stores.postgres.tables import dollar_quoted, literal, packed, quote

JOURNALS = 3

TRIGGERS = ["insert", "delete", "update", "truncate", "replica"]
"""The triggers, each with a function of its own name."""

TABLES = [*(f"journal{i}" for i in range(JOURNALS)), "state", "followers", "meta"]
SEQUENCES = ["until", "skipped", "ring"]
"""Everything that is installed in addition to functions and triggers."""

CHUNK = 500
"""Keys of one statement in a row of the journal."""

_STATEMENT_TRIGGERS = {
    "insert": "AFTER INSERT ON {} REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT",
    "delete": "AFTER DELETE ON {} REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT",
}
_ROW_TRIGGERS = {
    "update": "AFTER UPDATE ON {} FOR EACH ROW",
    "replica": "AFTER INSERT OR DELETE ON {} FOR EACH ROW",
}
_PARTITION_TRIGGERS = {
    "update": "AFTER UPDATE ON {} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows "
    "FOR EACH STATEMENT",
    "replica": "AFTER INSERT OR DELETE OR UPDATE ON {} FOR EACH ROW",
}
_TRUNCATE = {"truncate": "AFTER TRUNCATE ON {} FOR EACH STATEMENT"}

_MODES = {"replica": "REPLICA", "truncate": "ALWAYS"}
"""When triggers fire; ``update`` of a plain table is also ALWAYS."""


@dataclass(frozen=True)
class Relation:
    """The table, or one of its partitions."""

    oid: int
    name: str
    """Quoted, with its schema."""
    kind: str
    """PostgreSQL's letter: ``r`` is a table, ``p`` a partitioned one."""


@dataclass(frozen=True)
class Definition:
    """The table to follow, its key columns and the condition on its rows."""

    schema: str
    """Quoted, with a dot."""
    table: str
    base: str
    """The names of everything that is installed begin with it."""
    keys: Sequence[str]
    types: Sequence[str]
    where: str | None
    where_columns: Sequence[tuple[str, str]]
    """The names and types of the columns in the condition."""
    partitioned: bool

    @property
    def key_type(self) -> str:
        """The type of the key in the journal: text for several columns, which are packed."""
        return self.types[0] if len(self.types) == 1 else "text"

    @property
    def name(self) -> str:
        """The table, quoted."""
        return self.schema + quote(self.table)

    def part(self, name: str) -> str:
        """Return the quoted name of one of the installed objects."""
        return self.schema + quote(f"{self.base}_{name}")

    def journals(self) -> list[str]:
        """Return the names of the journals."""
        return [self.part(f"journal{i}") for i in range(JOURNALS)]

    def regclass(self, name: str) -> str:
        """Return the constant for one of the installed tables or sequences."""
        return f"{literal(self.part(name))}::pg_catalog.regclass"

    def triggers(self, relation: Relation) -> dict[str, tuple[str, str]]:
        """Return the triggers of a relation, and when each fires."""
        if relation.kind == "p":
            events = _STATEMENT_TRIGGERS | {"update": _PARTITION_TRIGGERS["update"]} | _TRUNCATE
        elif self.partitioned:
            events = _STATEMENT_TRIGGERS | _PARTITION_TRIGGERS | _TRUNCATE
        else:
            events = _STATEMENT_TRIGGERS | _ROW_TRIGGERS | _TRUNCATE
        modes = _MODES if self.partitioned else {**_MODES, "update": "ALWAYS"}
        return {part: (event, modes.get(part, "ORIGIN")) for part, event in events.items()}


def trigger_statements(d: Definition, relation: Relation) -> Iterator[str]:
    """Return the statements that create the triggers of a relation."""
    for part, (event, mode) in d.triggers(relation).items():
        name = quote(f"{d.base}_{part}")
        yield (
            f"CREATE OR REPLACE TRIGGER {name} {event.format(relation.name)} "
            f"EXECUTE FUNCTION {d.part(part)}()"
        )
        if mode != "ORIGIN":
            yield f"ALTER TABLE {relation.name} ENABLE {mode} TRIGGER {name}"


def object_statements(d: Definition) -> Iterator[str]:
    """Return the statements that create everything but the triggers; none waits for a writer."""
    yield f"CREATE TABLE IF NOT EXISTS {d.part('meta')} (name text PRIMARY KEY, value bytea)"
    # Unlogged: a crash or a promotion empties it, and may have lost commits that guards have seen.
    yield (
        f"CREATE UNLOGGED TABLE IF NOT EXISTS {d.part('state')} (token text, home text, "
        "settled bigint, trimmed xid8, trimmed_at pg_snapshot)"
    )
    yield (
        f"CREATE UNLOGGED TABLE IF NOT EXISTS {d.part('followers')} "
        "(name text PRIMARY KEY, position pg_snapshot, expires timestamptz)"
    )
    for sequence in SEQUENCES:
        yield (
            f"CREATE SEQUENCE IF NOT EXISTS {d.part(sequence)} AS bigint MINVALUE 0 START WITH 0"
        )
    for i, journal in enumerate(d.journals()):
        yield (
            f"CREATE TABLE IF NOT EXISTS {journal} "
            f"(xid xid8 NOT NULL, weight smallint NOT NULL, keys {d.key_type}[])"
        )
        yield (f"CREATE INDEX IF NOT EXISTS {quote(f'{d.base}_journal{i}_xid')} ON {journal} (xid)")
    if d.where:
        yield _condition(d)
    for part, body in log_functions(d).items():
        function = f"{d.part(part)}()"
        yield (
            f"CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql "
            f"SECURITY DEFINER AS {dollar_quoted(body)}"
        )
        # Whoever may execute it could log keys by a trigger on another table.
        yield f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC"
    yield (
        f"CREATE OR REPLACE FUNCTION {d.part('changes')}(since pg_snapshot) "
        f"RETURNS TABLE (key {d.key_type}, net bigint, state text) LANGUAGE plpgsql STABLE "
        "SET search_path = pg_catalog, pg_temp "
        "SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan "
        f"AS {dollar_quoted(_changes_body(d))}"
    )


def drop_statements(d: Definition, *, keep_meta: bool = False) -> Iterator[str]:
    """Return the statements that drop everything but the triggers, which must be gone."""
    functions = ", ".join(f"{d.part(part)}()" for part in TRIGGERS)
    yield f"DROP FUNCTION IF EXISTS {functions}, {d.part('changes')}(pg_snapshot)"
    yield (
        "DO "
        + dollar_quoted(
            "DECLARE f text; BEGIN FOR f IN SELECT p.oid::regprocedure FROM pg_proc AS p "
            f"WHERE p.proname = {literal(d.base + '_has')} "
            f"AND p.pronamespace = to_regnamespace({literal(d.schema[:-1])}) "
            "LOOP EXECUTE 'DROP FUNCTION ' || f; END LOOP; END"
        )
    )
    tables = [part for part in (*TABLES, "hash") if not (keep_meta and part in ("meta", "hash"))]
    yield f"DROP TABLE IF EXISTS {', '.join(map(d.part, tables))}"
    yield f"DROP SEQUENCE IF EXISTS {', '.join(map(d.part, SEQUENCES))}"


def grants(d: Definition, role: str) -> list[str]:
    """Return the rights that a guard's role needs where the table's owner has installed all."""
    tables, sequences = (", ".join(map(d.part, parts)) for parts in (TABLES, SEQUENCES))
    who = quote(role)
    return [
        # To create the index of hashes, which only filters that adapt need.
        f"GRANT USAGE, CREATE ON SCHEMA {d.schema.removesuffix('.')} TO {who}",
        f"GRANT SELECT ON {d.name} TO {who}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {tables} TO {who}",
        f"GRANT SELECT, USAGE, UPDATE ON SEQUENCE {sequences} TO {who}",
    ]


def _condition(d: Definition) -> str:
    """Return the statement for the function that says whether a row satisfies the condition.

    It takes the columns in the condition, not the row, so that no migration of other columns
    concerns it. Its names are looked up now, with the search path of this connection, and not again
    when somebody with another one fires a trigger.
    """
    parameters = ", ".join(f"c{i} {type}" for i, (_, type) in enumerate(d.where_columns))
    columns = ", ".join(f"c{i} AS {quote(name)}" for i, (name, _) in enumerate(d.where_columns))
    return (
        f"CREATE OR REPLACE FUNCTION {d.part('has')}({parameters}) RETURNS boolean LANGUAGE sql "
        f"IMMUTABLE BEGIN ATOMIC SELECT EXISTS (SELECT FROM (SELECT {columns}) AS "
        f"{quote(d.table)} WHERE ({d.where}\n)); END"
    )


def _present(d: Definition, row: str) -> str:
    """Return the condition that a row has a key and satisfies the condition."""
    parts = [f"{row}.{quote(key)} IS NOT NULL" for key in d.keys]
    if d.where:
        columns = ", ".join(f"{row}.{quote(name)}" for name, _ in d.where_columns)
        parts.append(f"{d.part('has')}({columns})")
    return " AND ".join(parts)


def _rows(d: Definition, table: str) -> str:
    key = packed(d.keys, d.types, "r.")
    return f"SELECT {key} AS k FROM {table} AS r WHERE {_present(d, 'r')}"


def _sources(d: Definition) -> dict[str, dict[str, str]]:
    """Return the queries of keys that went and came, for each operation of a statement trigger."""
    old, new = _rows(d, "old_rows"), _rows(d, "new_rows")
    return {
        "insert": {"come": new},
        "delete": {"gone": old},
        "update": {"gone": f"{old} EXCEPT ALL {new}", "come": f"{new} EXCEPT ALL {old}"},
    }


_WEIGHTS = {"gone": -1, "come": 1}


def log_functions(d: Definition) -> dict[str, str]:
    """Return the body of the trigger function of each trigger."""
    bodies = {}
    for part, sides in _sources(d).items():
        # One key more than a row of the journal takes shows that there are more.
        read = " ".join(
            f"{side} := (SELECT pg_catalog.array_agg(s.k) FROM ({source} LIMIT {CHUNK + 1}) AS s);"
            for side, source in sides.items()
        )
        bodies[part] = _log_body(d, read, _write_chunks(d, sides), sides)
    old, new = (
        f"IF {_present(d, row)} THEN {side} := ARRAY[{packed(d.keys, d.types, f'{row}.')}]; END IF;"
        for row, side in (("OLD", "gone"), ("NEW", "come"))
    )
    changed = f"{old} {new} IF gone[1] OPERATOR(pg_catalog.=) come[1] THEN RETURN NULL; END IF;"
    is_op = "TG_OP OPERATOR(pg_catalog.=) '{}'".format
    replica = f"""IF {is_op("INSERT")} THEN {new} ELSIF {is_op("DELETE")} THEN {old}
    ELSE {changed} END IF;"""
    bodies["replica"] = _log_body(d, replica, "", _WEIGHTS)
    if not d.partitioned:
        # First, as most updates change neither the key nor the condition.
        same = " AND ".join(
            f"OLD.{quote(name)} OPERATOR(pg_catalog.=) NEW.{quote(name)}" for name in d.keys
        )
        unchanged = "" if d.where else f"IF {same} THEN RETURN NULL; END IF;"
        bodies["update"] = _log_body(d, changed, "", _WEIGHTS, first=unchanged)
    bodies["truncate"] = _log_body(d, "", "", ())
    return bodies


def _log_body(
    d: Definition, read: str, write_chunks: str, sides: Iterable[str], first: str = ""
) -> str:
    """Return a trigger function: read the keys, then write them to a journal."""
    xid = "pg_catalog.pg_current_xact_id()"
    write = "\n".join(
        f"  {'ELSIF' if i or write_chunks else 'IF'} ring OPERATOR(pg_catalog.=) {i} THEN "
        + " ".join(
            f"IF {side} IS NOT NULL THEN "
            f"INSERT INTO {journal} VALUES ({xid}, {_WEIGHTS[side]}, {side}); END IF;"
            for side in sides
        )
        + ("" if sides else f"INSERT INTO {journal} VALUES ({xid}, 0, NULL);")
        for i, journal in enumerate(d.journals())
    )
    skip = f"PERFORM pg_catalog.nextval({d.regclass('skipped')}); RETURN NULL;"
    return f"""
DECLARE
  gone {d.key_type}[]; come {d.key_type}[]; ring pg_catalog.int8;
BEGIN
  BEGIN
    {first}
    ring := CASE WHEN pg_catalog.pg_sequence_last_value({d.regclass("until")})
        OPERATOR(pg_catalog.>) pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
        AND {" AND ".join(f"{d.regclass(f'journal{i}')} IS NOT NULL" for i in range(JOURNALS))}
      THEN COALESCE(pg_catalog.pg_sequence_last_value({d.regclass("ring")}), 0)
        OPERATOR(pg_catalog.%) {JOURNALS} END;
    IF ring IS NULL THEN {skip} END IF;
    {read}
  EXCEPTION WHEN OTHERS THEN
    IF pg_catalog.to_regclass({literal(d.part("skipped"))}) IS NULL THEN RETURN NULL; END IF;
    {skip}
  END;
{write_chunks}
{write}
  END IF;
  RETURN NULL;
END
"""


def _write_chunks(d: Definition, sides: Mapping[str, str]) -> str:
    """Return the beginning of the condition that writes many keys in several rows."""
    journal = f"{literal(d.part('journal')[:-1])}, ring, '\"'"
    many = " OR ".join(
        f"pg_catalog.cardinality({side}) OPERATOR(pg_catalog.>) {CHUNK}" for side in sides
    )
    writes = " ".join(
        f"EXECUTE pg_catalog.concat('INSERT INTO ', {journal}, "
        + literal(
            f" SELECT pg_catalog.pg_current_xact_id(), {_WEIGHTS[side]}, "
            "pg_catalog.array_agg(p.k) FROM (SELECT s.k, "
            "(pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1) "
            f"OPERATOR(pg_catalog./) {CHUNK} AS chunk FROM ({source}) AS s) AS p "
            "GROUP BY p.chunk"
        )
        + ");"
        for side, source in sides.items()
    )
    return f"  IF {many} THEN {writes}"


def _changes_body(d: Definition) -> str:
    """Return the body of the function that a change check calls.

    Its first row has a state: the snapshot, the token, a hash of everything that a change of the
    schema alters, and whether the server is a standby; and a number above 0 if the journal does
    not reach back to the old snapshot. A row without key and state means that the table was
    truncated.
    """
    if d.partitioned:
        tree = (
            "WITH RECURSIVE tree (oid) AS (SELECT followed UNION "
            "SELECT i.inhrelid FROM pg_inherits AS i JOIN tree ON i.inhparent = tree.oid) "
        )
        among = "IN (SELECT tree.oid FROM tree)"
    else:
        tree, among = "", "= followed"
    names = ", ".join(literal(f"{d.base}_{part}") for part in TRIGGERS)
    used = [*d.keys, *(name for name, _ in d.where_columns)]
    columns = ", ".join(literal(name) for name in dict.fromkeys(used))
    schema = f"""followed,
      pg_sequence_last_value({d.regclass("skipped")}), pg_postmaster_start_time(),
      (SELECT sum(hash_record_extended(ROW(t.tgrelid, t.tgname, t.tgenabled, t.xmin), 0))
        FROM pg_trigger AS t WHERE t.tgrelid {among} AND t.tgname IN ({names})),
      (SELECT sum(hash_record_extended(ROW(i.inhparent, i.inhrelid, i.inhdetachpending), 0))
        FROM pg_inherits AS i WHERE i.inhparent {among}),
      (SELECT sum(hash_record_extended(ROW(i.inhparent, true), 0))
        FROM pg_inherits AS i WHERE i.inhrelid = followed),
      (SELECT sum(hash_record_extended(ROW(a.attname, a.attnum, a.xmin), 0))
        FROM pg_attribute AS a WHERE a.attrelid = followed AND a.attname IN ({columns})),
      (SELECT sum(hash_record_extended(ROW(x.indexrelid, x.indisvalid), 0))
        FROM pg_index AS x WHERE x.indrelid = followed AND x.indisunique)"""
    union = "\n    UNION ALL ".join(
        f"SELECT j.weight, j.keys FROM {journal} AS j WHERE {condition}"
        for journal in d.journals()
        for condition in (
            "j.xid >= pg_snapshot_xmax(since) AND j.xid < pg_snapshot_xmax(now)",
            "j.xid = ANY (ended)",
        )
    )
    return f"""
#variable_conflict use_column
DECLARE
  now pg_snapshot := pg_current_snapshot();
  ended xid8[] := ARRAY(SELECT pg_snapshot_xip(since) EXCEPT SELECT pg_snapshot_xip(now));
  followed oid := to_regclass({literal(d.name)})::oid;
  digest bigint;
BEGIN
  digest := ({tree}SELECT hashtextextended(concat_ws('|', {schema}), 0));
  RETURN QUERY SELECT NULL::{d.key_type}, (
      pg_snapshot_xmax(since) > pg_snapshot_xmax(now)
      OR coalesce(s.trimmed >= pg_snapshot_xmax(since), false)
      OR coalesce(s.trimmed >= pg_snapshot_xmin(since), false) AND EXISTS (
        SELECT FROM unnest(ended) AS e (x) WHERE e.x <= s.trimmed
          AND e.x NOT IN (SELECT pg_snapshot_xip(s.trimmed_at)))
    )::int::bigint,
    concat_ws('|', now, coalesce(s.token, ''), digest, pg_is_in_recovery())
  FROM (VALUES (1)) AS one LEFT JOIN {d.part("state")} AS s ON true;
  IF cardinality(ended) = 0 AND pg_snapshot_xmax(since) = pg_snapshot_xmax(now) THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT c.k, sum(d.weight)::bigint, NULL::text FROM (
    {union}
  ) AS d LEFT JOIN LATERAL unnest(d.keys) AS c (k) ON true
  GROUP BY c.k HAVING sum(d.weight) <> 0 OR c.k IS NULL;
END
"""
