"""Load the service of `run.py`: latency and queries per second, with and without the guard.

    python examples/service/load.py http://127.0.0.1:8000

For 0, 50 and 95 % absent users, requests alternate between the endpoint with the guard and the one
without, so that other load on the machine affects both.
"""

import argparse
import asyncio
import random
import time
from urllib.parse import urlsplit

ENDPOINTS = {"unguarded": "/unguarded/users/", "guarded": "/users/"}
ABSENT = (0.0, 0.5, 0.95)


async def client(host, port, paths, seconds):
    """Ask for one path after the other on one connection; append how long each took."""
    reader, writer = await asyncio.open_connection(host, port)
    for path, status in paths:
        start = time.perf_counter()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        seconds.append(time.perf_counter() - start)
        if int(head.split(None, 2)[1]) != status:
            raise SystemExit(f"{path} was answered with {head.splitlines()[0].decode()}")
    writer.close()
    await writer.wait_closed()


async def measure(url, endpoint, requests, connections, chance):
    """Send requests over several connections; return the sorted latencies and the time for all."""
    at, seconds = urlsplit(url), []
    shares = [requests[i::connections] for i in range(connections)]
    chance.shuffle(shares)
    paths = [[(ENDPOINTS[endpoint] + email, status) for email, status in part] for part in shares]
    start = time.perf_counter()
    await asyncio.gather(*(client(at.hostname, at.port, part, seconds) for part in paths))
    return seconds, time.perf_counter() - start


def draw(chance, count, absent, users):
    """Draw users to ask for, each with the status of the answer; the absent ones repeat."""
    return [
        (f"guest{int(chance.paretovariate(0.5)) % 10**9}@example.org", 404)
        if chance.random() < absent
        else (f"user{chance.randrange(users)}@example.org", 200)
        for _ in range(count)
    ]


async def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="where the service is, such as http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=4000, help="requests per row and endpoint")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4, help="turns that the two endpoints take")
    parser.add_argument("--users", type=int, default=1000, help="users that are known to exist")
    given = parser.parse_args()
    chance = random.Random(1)
    print("absent   endpoint      p50 ms   p99 ms   queries/s", flush=True)
    for absent in ABSENT:
        latencies, total = {name: [] for name in ENDPOINTS}, dict.fromkeys(ENDPOINTS, 0.0)
        for _ in range(given.rounds):
            requests = draw(chance, given.requests // given.rounds, absent, given.users)
            for name in chance.sample(sorted(ENDPOINTS), 2):
                some, took = await measure(given.url, name, requests, given.connections, chance)
                latencies[name] += some
                total[name] += took
        for name in ENDPOINTS:
            times = sorted(latencies[name])
            p50, p99 = (1000 * times[int(len(times) * share)] for share in (0.5, 0.99))
            rate = len(times) / total[name]
            print(f"{absent:6.0%}   {name:10} {p50:9.2f} {p99:8.2f} {rate:11,.0f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
