"""The faults. Each is a coroutine of a scene and a random generator that returns what it drew."""

import asyncio
import os
import shutil
import signal
import time
from contextlib import suppress


def _any_worker(scene, chance):
    return chance.choice(scene.workers)


def _past_the_lease(scene, chance):
    return scene.lease * chance.uniform(1.2, 3)


async def kill_client(scene, chance):
    worker = _any_worker(scene, chance)
    await worker.kill()
    await asyncio.sleep(chance.choice([0, 0.05, 2 * scene.lease]))
    await worker.restart()
    return worker.name


async def pause_client(scene, chance):
    worker, seconds = _any_worker(scene, chance), _past_the_lease(scene, chance)
    worker.signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    worker.signal(signal.SIGCONT)
    return f"{worker.name} for {seconds:.2f} s"


async def _reach(scene, chance, place):
    """Bring a worker to a place inside a write or a rebuild; return it and whether it got there."""
    worker = _any_worker(scene, chance)
    others = [each for each in scene.workers if each is not worker]
    arrival = asyncio.create_task(worker.reach(place, 2 + 2 * scene.lease))
    await asyncio.sleep(0)
    if place == "rebuild":
        worker.start_call(do="rebuild", guard=0)
    elif place == "attach" and not others:
        worker.start_call(do="reopen", fresh=True)
    elif place == "attach":
        # A guard attaches its own hash when it takes over the lease of one with another hash.
        for other in others:
            other.signal(signal.SIGSTOP)
        await arrival
        for other in others:
            other.signal(signal.SIGCONT)
    return worker, await arrival


def _kill_inside(place):
    async def kill_inside(scene, chance):
        worker, there = await _reach(scene, chance, place)
        await worker.kill()
        await worker.restart()
        return f"{worker.name}, {'there' if there else 'elsewhere'}"

    return kill_inside


def _pause_inside(place):
    async def pause_inside(scene, chance):
        worker, there = await _reach(scene, chance, place)
        seconds = _past_the_lease(scene, chance)
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        worker.signal(signal.SIGCONT)
        return f"{worker.name} for {seconds:.2f} s, {'there' if there else 'elsewhere'}"

    return pause_inside


async def writers_race(scene, chance):
    """Every guard writes the same keys at once, just after one of them gave up the lease."""
    keys = chance.sample(scene.hot, 5)
    worker = _any_worker(scene, chance)
    reopening = worker.start_call(do="reopen")
    for _ in range(5):
        calls = [
            scene.put(each, guard, keys) if chance.random() < 0.7 else scene.get(each, guard, keys)
            for each, guard in scene.guards
        ]
        await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.wait([reopening], timeout=10)
    return worker.name


async def step_client_clock(scene, chance):
    """Step the wall clock of one machine; processes that share a file are on one."""
    seconds = chance.choice([11, 3600, -3600, -2, 2, 86400 * 400])
    zygotes = [chance.choice(scene.zygotes)] if scene.backend.server else scene.zygotes
    for zygote in zygotes:
        zygote.clock.step(seconds)
    await asyncio.sleep(chance.choice([0.1, 1.5]) * scene.lease)
    if chance.random() < 0.5:
        for zygote in zygotes:
            zygote.clock.step(0)
    return f"{seconds:+} s"


async def restore_snapshot(scene, chance):
    """Kill a client, and start it with a snapshot of some time ago."""
    worker = _any_worker(scene, chance)
    snapshot = worker.config["guards"][0]["snapshot"]
    kept = f"{snapshot}.kept"
    await worker.kill()
    if os.path.exists(kept):
        shutil.copy(kept, snapshot)
    elif os.path.exists(snapshot):
        shutil.copy(snapshot, kept)
    await worker.restart()
    return worker.name


# Servers.


async def _restart_server(scene, number):
    server, proxy, begin = scene.backend.server, scene.backend.proxy, time.monotonic()
    proxy.refuse()
    await server.end(number)
    await server.start()
    if scene.backend.loses:
        # Before any guard can write again.
        scene.record_loss(begin, await asyncio.to_thread(scene.backend.read))
    proxy.resume()


async def kill_server(scene, chance):
    await _restart_server(scene, scene.backend.server.stop_at_once)


async def kill_server_process(scene, chance):
    """Kill one process of the server, upon which it ends all others and recovers."""
    backends = await asyncio.to_thread(scene.backend.backends)
    if backends:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(backends), signal.SIGKILL)
    await asyncio.sleep(0.05)
    await scene.backend.server.ready()


async def pause_server(scene, chance):
    seconds = _past_the_lease(scene, chance)
    scene.backend.server.signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    scene.backend.server.signal(signal.SIGCONT)
    return f"{seconds:.2f} s"


async def restart_with_another_clock(scene, chance):
    """Restart the server with its wall clock ahead, by which it would have run for long."""
    await _restart_server(scene, scene.backend.server.stop_at_once)
    scene.server_clock.step(3600)
    await asyncio.sleep(scene.lease)
    scene.server_clock.step(0)


async def pause_across_restart(scene, chance):
    """Stop a client, restart the server, and let the client continue in its old belief."""
    worker = _any_worker(scene, chance)
    worker.signal(signal.SIGSTOP)
    await asyncio.sleep(scene.lease * chance.uniform(0, 0.5))
    await _restart_server(scene, scene.backend.server.stop_at_once)
    await asyncio.sleep(scene.lease * chance.choice([0, 0.5, 1.5]))
    worker.signal(signal.SIGCONT)
    return worker.name


async def step_server_clock(scene, chance):
    seconds = chance.choice([11, 3600, -3600, -2, 2])
    scene.server_clock.step(seconds)
    await asyncio.sleep(chance.choice([0.1, 1.5]) * scene.lease)
    if chance.random() < 0.5:
        scene.server_clock.step(0)
    return f"{seconds:+} s"


async def flush(scene, chance):
    begin = time.monotonic()
    await asyncio.to_thread(scene.backend.flush)
    scene.record_loss(begin, {})


async def evict(scene, chance):
    """Remove one of the store's Redis keys, as a server short of memory does."""
    proxy, begin = scene.backend.proxy, time.monotonic()
    parts = await asyncio.to_thread(scene.backend.parts)
    if not parts:
        return "nothing there"
    part = chance.choice(parts)
    proxy.hold()
    await asyncio.to_thread(scene.backend.evict, part)
    scene.record_loss(begin, await asyncio.to_thread(scene.backend.read))
    proxy.resume()
    return part


# The network.


async def drop_connections(scene, chance):
    for _ in range(chance.choice([1, 3])):
        scene.backend.proxy.abort()
        await asyncio.sleep(0.03)


async def cut_network(scene, chance):
    """No byte gets through, and those under way are lost."""
    seconds = _past_the_lease(scene, chance) * chance.choice([0.2, 1])
    scene.backend.proxy.hold()
    await asyncio.sleep(seconds)
    scene.backend.proxy.abort()
    scene.backend.proxy.resume()
    return f"{seconds:.2f} s"


async def delay_network(scene, chance):
    """No byte gets through for a while, then all of them do."""
    seconds = _past_the_lease(scene, chance) * chance.choice([0.2, 1])
    scene.backend.proxy.hold()
    await asyncio.sleep(seconds)
    scene.backend.proxy.resume()
    return f"{seconds:.2f} s"


async def lose_replies(scene, chance):
    """Writes are done, but who asked for them never hears."""
    scene.backend.proxy.losing_replies = True
    await asyncio.sleep(chance.uniform(0.02, 0.2))
    scene.backend.proxy.abort()
    scene.backend.proxy.resume()


# The disk, and strangers.


async def fill_disk(scene, chance):
    """Fill the disk to the last byte, and free it again."""
    filler = scene.folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    await asyncio.sleep(chance.uniform(0.5, 2) * scene.lease)
    begin = time.monotonic()
    filler.unlink()
    if scene.backend.server is not None:
        await scene.backend.server.ready()
    if chance.random() < 0.5 or scene.backend.store == "RocksDB":
        # RocksDB accepts no writes after a failed one until it is opened again.
        worker = _any_worker(scene, chance)
        await asyncio.wait([worker.start_call(do="reopen")], timeout=10)
    return f"{time.monotonic() - begin:.2f} s"


async def open_transaction(scene, chance):
    """A stranger writes a key and commits much later."""
    seconds = _past_the_lease(scene, chance)
    await scene.write_as_stranger(chance.choice(scene.hot), True, seconds)
    return f"{seconds:.2f} s"


async def migrate(scene, chance):
    """Copy the table, drop it with its triggers and rename the copy; then a stranger writes."""
    await asyncio.to_thread(scene.backend.migrate)
    for key in chance.sample(scene.hot, 3):
        await scene.write_as_stranger(key, True, 0.0)


CLIENT = {
    "kill client": kill_client,
    "kill client inside put": _kill_inside("put"),
    "kill client after commit": _kill_inside("committed put"),
    "kill client inside rebuild": _kill_inside("rebuild"),
    "kill client inside attach": _kill_inside("attach"),
    "pause client": pause_client,
    "pause client inside put": _pause_inside("put"),
    "pause client after commit": _pause_inside("committed put"),
    "pause client inside rebuild": _pause_inside("rebuild"),
    "pause client inside attach": _pause_inside("attach"),
    "writers race": writers_race,
    "step client clock": step_client_clock,
    "restore snapshot": restore_snapshot,
}
NETWORK = {
    "drop connections": drop_connections,
    "cut network": cut_network,
    "delay network": delay_network,
    "lose replies": lose_replies,
}
SERVER = {
    "kill server": kill_server,
    "pause client across restart": pause_across_restart,
    "restart server, step clock": restart_with_another_clock,
    "pause server": pause_server,
    "step server clock": step_server_clock,
}
DISK = {"fill disk": fill_disk}
REDIS = {"flush": flush, "evict": evict}
POSTGRES = {"kill server process": kill_server_process}
STRANGERS = {"open transaction": open_transaction, "migrate table": migrate}
