"""The fault campaign: its checker finds what is wrong, its proxy cuts, and a short one is clean."""

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from soak import SOAK

from campaign import history, scenes, settings
from campaign.checker import check
from campaign.history import FOREVER, Fault, Operation
from campaign.processes import Clock
from campaign.proxy import Proxy

TESTS = Path(__file__).parents[1]


def put(begin, end, outcome="ok", process="a", key="k", value="v"):
    return Operation(process, "put", [key], begin, end, outcome, values=[value])


def delete(begin, end=FOREVER, outcome="unknown", key="k"):
    return Operation("a", "delete", [key], begin, end, outcome)


def get(begin, end, value=None, staleness=0.0, process="b", key="k"):
    absent = [0] if value is None else []
    return Operation(process, "get", [key], begin, end, "ok", [value], absent, staleness=staleness)


def seen(begin, end, present, key="k"):
    return Operation("store", "seen", [key], begin, end, "ok", absent=[] if present else [0])


def lost(begin, end, key="k"):
    return Operation("server", "lost", [key], begin, end, "ok")


def kinds(*operations):
    # The order in which operations were noted says nothing.
    found = [violation.kind for violation in check(reversed(operations))]
    assert found == [violation.kind for violation in check(operations)]
    return found


def test_a_planted_denial_is_found():
    assert kinds(put(1, 2), get(3, 4)) == ["denied"]
    assert kinds(put(1, 2), get(2, 4)) == ["denied"]
    assert kinds(put(1, 2), get(3, 4, "v"), get(5, 6)) == ["denied"]
    assert kinds(put(1, 2, key="other"), get(3, 4)) == []


def test_calls_at_the_same_time_prove_nothing():
    assert kinds(put(1, 3), get(2, 4)) == []
    assert kinds(put(1, 2), delete(2.5, 5, "ok"), get(3, 4)) == []


def test_a_put_of_unknown_outcome_binds_once_it_was_seen():
    assert kinds(put(1, FOREVER, "unknown"), get(3, 4)) == []
    assert kinds(put(1, FOREVER, "unknown"), get(3, 4, "v"), get(5, 6)) == ["denied"]
    assert kinds(put(1, FOREVER, "unknown"), seen(3, 4, True), get(5, 6)) == ["denied"]
    assert kinds(put(1, FOREVER, "unknown"), seen(3, 5, True), get(4, 6)) == []


def test_a_delete_excuses_what_it_can_come_before():
    assert kinds(put(1, 2), delete(3, 4, "ok"), get(5, 6)) == []
    assert kinds(put(1, 2), delete(3), get(5, 6)) == []  # unknown: at any time since
    assert kinds(put(1, 2), delete(3, 4, "refused"), get(5, 6)) == ["denied"]
    assert kinds(put(1, 2), delete(7, 8, "ok"), get(5, 6)) == ["denied"]
    assert kinds(delete(1, 2, "ok"), put(3, 4), get(5, 6)) == ["denied"]
    assert kinds(delete(1, 3.5, "ok"), put(3, 4), get(5, 6)) == []
    # Of two puts, the later one counts, also if the earlier one returned after it.
    assert kinds(put(1, 9), delete(2, 3, "ok"), put(4, 5), get(10, 11)) == ["denied"]
    # A delete that returned late outlives those that began after it.
    assert kinds(delete(1, 5, "ok"), delete(2, 3, "ok"), put(4, 6), get(7, 8)) == []


def test_staleness_delays_what_others_wrote_and_not_what_the_guard_wrote():
    assert kinds(put(1, 2), get(2.5, 3, staleness=1)) == []
    assert kinds(put(1, 2), get(3, 4, staleness=1)) == ["denied"]
    assert kinds(put(1, 2, process="b"), get(2.5, 3, staleness=1)) == ["denied"]
    assert kinds(put(1, 2, process="b"), delete(2, 3, "ok"), get(2.5, 3, staleness=1)) == []


def test_what_the_server_lost_is_not_denied_and_what_it_should_have_is_lost():
    assert kinds(put(1, 2), lost(3, 4), get(5, 6)) == []
    assert kinds(put(1, 2), lost(3, 4), put(5, 6), get(7, 8)) == ["denied"]
    assert kinds(put(1, 2), lost(3, 4), seen(5, 6, False)) == []
    assert kinds(put(1, 2), seen(5, 6, False)) == ["lost"]


def test_a_value_that_nobody_put_is_found():
    assert kinds(put(1, 2), get(3, 4, "w")) == ["invented"]
    assert kinds(put(1, 2), get(3, 4, "w"), put(5, 6, value="w")) == ["invented"]
    assert kinds(put(1, FOREVER, "unknown", value="w"), get(3, 4, "w")) == []


def test_a_history_is_read_as_it_was_written(tmp_path):
    operations = [put(1, 2), delete(3), get(5, 6), lost(7, 8, key=5), seen(9, 10, True)]
    faults = [Fault("flush", 1.5, 2.5, "all")]
    history.save(tmp_path / "h.jsonl", {"store": "redis"}, faults, operations)
    assert history.load(tmp_path / "h.jsonl") == ({"store": "redis"}, faults, operations)


def test_a_plan_is_drawn_from_its_seed():
    faults = scenes.KINDS["redis"].faults
    one, two = (scenes.plan(faults, 50, random.Random(7)) for _ in range(2))
    assert one == two
    assert one != scenes.plan(faults, 50, random.Random(8))
    assert set(one) == set(faults)


def test_only_the_wall_clock_steps(tmp_path):
    library = scenes.compile_clock(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    clock = Clock(tmp_path / "clock", library)
    clock.step(3600)
    show = (
        "import time; print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    )
    before = time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    done = subprocess.run([sys.executable, "-c", show], env=clock.env, capture_output=True)
    steps = [float(x) - y for x, y in zip(done.stdout.split(), before, strict=True)]
    assert 3600 <= steps[0] < 3700
    assert 0 <= steps[1] < 100
    assert 0 <= steps[2] < 100


async def ended(reader):
    """Return whether a connection ended without another byte, in order or not."""
    try:
        return await asyncio.wait_for(reader.read(5), 10) == b""
    except ConnectionError:
        return True


def test_the_proxy_holds_cuts_and_loses_replies():
    async def echo(reader, writer):
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def main():
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        proxy = Proxy(server.sockets[0].getsockname()[1])
        await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        proxy.hold()
        writer.write(b"two")
        late = asyncio.create_task(reader.readexactly(3))
        assert not (await asyncio.wait([late], timeout=0.05))[0]
        proxy.resume()
        assert await late == b"two"
        proxy.losing_replies = True
        writer.write(b"three")
        late = asyncio.create_task(ended(reader))
        assert not (await asyncio.wait([late], timeout=0.05))[0]
        proxy.abort()
        assert await late
        proxy.refuse()
        refused, second = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await ended(refused)
        for each in (writer, second):
            each.close()
        await proxy.close()
        server.close()
        await asyncio.sleep(0.01)  # transports close in the next turns of the loop

    asyncio.run(main())


def test_no_stored_key_is_denied_in_a_short_campaign(tmp_path):
    """`make soak` runs a thousand faults; this draws some of each store, the same every time."""
    if SOAK:
        pytest.skip("make soak runs the long campaign")
    command = [sys.executable, "-m", "campaign", "--faults", "27", "--seed", "16", "--jobs", "4"]
    path = os.pathsep.join(
        [str(TESTS), str(TESTS / "helpers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("table", "steps"), [("Postgres", 40), ("MariaDB", 25)])
def test_no_stored_key_is_denied_while_schemas_and_settings_change(table, steps):
    if SOAK:
        pytest.skip("make soak runs the long campaign")
    campaign = settings.run(table, steps, seed=16)
    assert not campaign.wrong, "\n".join([*campaign.log[-30:], *campaign.wrong])
    assert campaign.counts["answers"] > 500
