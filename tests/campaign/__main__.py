"""Run the campaign, print what happened, and fail if a stored key was denied.

PYTHONPATH=tests:tests/helpers python -m campaign --faults 1000 --seed 1
PYTHONPATH=tests:tests/helpers python -m campaign --check build/campaign/redis-1.jsonl
"""

import argparse
import asyncio
import random
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest

from campaign import checker, history, scenes
from campaign.processes import Clock, Zygote
from campaign.supervisor import Scene

PYTHONPATH = "PYTHONPATH=tests:tests/helpers"
OUTPUT = Path("build/campaign")
EXPECTED = {"LeaseError", "StoreError", "NotOpen", "Closed"}
"""Errors that a caller of a guard under faults has to expect; the first of others is printed."""


class Result:
    """What one store went through."""

    def __init__(self, name):
        self.name = name
        self.faults: Counter[str] = Counter()
        self.history: list[history.Fault] = []
        self.operations = self.saved = 0
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.violations: list[checker.Violation] = []
        self.hung: list[str] = []
        self.unavailable: list[str] = []
        self.broken = self.note = ""

    def count(self, kind):
        return sum(violation.kind == kind for violation in self.violations)

    @property
    def failed(self):
        return bool(self.violations or self.hung or self.unavailable or self.broken)


async def run_fault(scene, kind, name, chance):
    """Let one fault happen under load, and compare the store with its guards afterwards."""
    scene.draw_moods(chance)
    await asyncio.sleep(chance.uniform(0.05, 0.25))
    fault = history.Fault(name, time.monotonic())
    scene.faults.append(fault)
    fault.detail = await kind.faults[name](scene, chance) or ""
    fault.end = time.monotonic()
    await asyncio.sleep(chance.uniform(0.1, 0.4))
    await scene.settle()


async def run_scene(name, faults, arguments, zygotes, server_clock, folder) -> Result:
    """Put one store through its faults and check the history."""
    kind = scenes.KINDS[name]
    result = Result(name)
    chance = random.Random(f"{arguments.seed} {name} guards")
    for clock in (server_clock, *(zygote.clock for zygote in zygotes)):
        clock.step(0)
    backend = scene = None
    try:
        backend = kind.make(folder, server_clock.env)
        await backend.start()
        scene = Scene(
            name,
            backend,
            zygotes,
            scenes.guards(kind, folder, chance),
            server_clock=server_clock,
            folder=folder,
            seed=arguments.seed,
            lease=scenes.LEASE,
            base=kind.base,
        )
        await scene.start()
        for i, fault in enumerate(faults):
            await run_fault(scene, kind, fault, random.Random(f"{arguments.seed} {name} {i}"))
            if arguments.verbose:
                print(f"{name} {i}: {fault} {scene.faults[-1].detail}", flush=True)
    except (pytest.skip.Exception, ImportError) as missing:
        result.note = str(missing)
    except (pytest.fail.Exception, Exception) as error:
        result.broken = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    finally:
        # The backend first: it may be that there is no time for more.
        for each in (backend, scene):
            if each is not None:
                await each.close()
    if scene is None:
        return result
    result.history = scene.faults
    result.faults.update(fault.name for fault in scene.faults)
    result.operations = len(scene.operations)
    result.saved = sum(worker.saved + worker._saved_now for worker in scene.workers)
    result.errors, result.examples = scene.errors, scene.examples
    result.hung, result.unavailable = scene.hung, scene.unavailable
    result.violations = checker.check(scene.operations)
    if result.failed or arguments.keep:
        path = OUTPUT / f"{name.replace(' ', '-')}-{arguments.seed}.jsonl"
        again = ["python", "-m", "campaign", "--seed", str(arguments.seed), "--store", name]
        again += [word for fault in arguments.fault or () for word in ("--fault", fault)]
        header = {
            "store": name,
            "plan": faults,
            "again": f"{PYTHONPATH} {shlex.join([*again, '--faults', str(len(faults))])}",
            "check": f"{PYTHONPATH} python -m campaign --check {path}",
            "hung": result.hung,
            "unavailable": result.unavailable,
        }
        history.save(path, header, scene.faults, scene.operations)
        result.note = f"{path}: {header['again']}"
    return result


def draw_all(names, arguments) -> list[tuple[str, list[str]]]:
    """Draw the faults of each store."""
    each, more = divmod(arguments.faults, len(names))
    plans = []
    for i, name in enumerate(names):
        possible = [f for f in scenes.KINDS[name].faults if f in (arguments.fault or [f])]
        chance = random.Random(f"{arguments.seed} {name}")
        plans.append((name, scenes.plan(possible, each + (i < more), chance)))
    return plans


async def run(arguments, names) -> list[Result]:
    """Run the scenes, some at a time."""
    # Ended from outside, it still ends the processes that it started.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    queue = draw_all(names, arguments)
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="tamis-campaign-") as work:
        folder = Path(work)
        folder.chmod(0o755)
        OUTPUT.mkdir(parents=True, exist_ok=True)
        preload, mounts = scenes.compile_clock(folder), scenes.own_mounts()
        if preload is None:
            print("no C compiler: clocks do not step")
            queue = [(n, [f for f in faults if "clock" not in f]) for n, faults in queue]
        if not mounts:
            print("no right to mount: no disk is full")
            queue = [(n, [f for f in faults if "disk" not in f]) for n, faults in queue]

        async def work_off(job):
            clocks = [Clock(folder / f"clock-{job}-{i}", preload) for i in range(3)]
            log = OUTPUT / f"workers-{job}.log"
            zygotes = [Zygote(clock, log) for clock in clocks[:2]]
            try:
                while queue:
                    name, faults = queue.pop()
                    place = folder / name.replace(" ", "-")
                    place.mkdir()
                    if mounts:
                        scenes.mount_disk(place, scenes.KINDS[name].megabytes)
                    scene = run_scene(name, faults, arguments, zygotes, clocks[2], place)
                    results[name] = await scene
            finally:
                for zygote in zygotes:
                    zygote.close()

        try:
            await asyncio.gather(*(work_off(job) for job in range(arguments.jobs)))
        finally:
            for name in names if mounts else ():
                scenes.unmount_disk(folder / name.replace(" ", "-"))
    return [results[name] for name in names]


def print_table(results):
    """Print the faults by type, and what came of them, with a column per store."""
    types = sorted({fault for result in results for fault in result.faults})
    rows = [(fault, [result.faults[fault] for result in results]) for fault in types]
    rows += [
        ("faults", [result.faults.total() for result in results]),
        ("operations", [result.operations for result in results]),
        ("reads saved", [result.saved for result in results]),
        ("hung", [len(result.hung) for result in results]),
        ("unavailable", [len(result.unavailable) for result in results]),
        ("lost", [result.count("lost") for result in results]),
        ("invented", [result.count("invented") for result in results]),
        ("denied", [result.count("denied") for result in results]),
    ]
    print(f"{'':27}" + "".join(f"{result.name:>15}" for result in results) + f"{'all':>10}")
    for title, counts in rows:
        if title == "faults":
            print()
        cells = "".join(f"{count or '-':>15}" for count in counts)
        print(f"{title:27}{cells}{sum(counts):>10}")
    for result in results:
        if result.errors:
            named = ", ".join(f"{name} {count}" for name, count in result.errors.most_common())
            print(f"{result.name}: errors raised: {named}")
        for name in sorted(result.examples.keys() - EXPECTED):
            print(f"  {result.examples[name]}")
        if result.note:
            print(f"{result.name}: {result.note}")


def print_violations(faults, violations, limit=5):
    """Print how many wrong answers followed which fault, and the first ones with what proves it."""
    after = Counter()
    for violation in violations:
        begun = [fault.name for fault in faults if fault.begin < violation.operation.end]
        after[f"{violation.kind} after {begun[-1] if begun else 'no fault'}"] += 1
    for where, count in after.most_common():
        print(f"  {where}: {count}")
    for violation in violations[:limit]:
        get, reason = violation.operation, violation.reason
        print(
            f"  {violation.kind}: {violation.key!r} by {get.process}, {get.begin:.4f}–{get.end:.4f}"
        )
        if reason:
            print(f"    {reason.kind} by {reason.process}, {reason.begin:.4f}–{reason.end:.4f}")


def main():
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=1000, help="over all stores (default: 1000)")
    parser.add_argument("--seed", type=int, help="of the plan (default: at random)")
    parser.add_argument(
        "--store", action="append", choices=list(scenes.KINDS), help="only this one"
    )
    parser.add_argument("--fault", action="append", metavar="NAME", help="only this fault")
    parser.add_argument("--jobs", type=int, default=2, help="stores at a time (default: 2)")
    parser.add_argument("--keep", action="store_true", help="write the histories in any case")
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    parser.add_argument("--verbose", action="store_true", help="print each fault")
    parser.add_argument("--check", type=Path, metavar="FILE", help="check a history and end")
    arguments = parser.parse_args()
    if arguments.check:
        header, faults, operations = history.load(arguments.check)
        violations = checker.check(operations)
        print(f"{header['store']}: {len(operations)} operations, {len(violations)} wrong answers")
        print_violations(faults, violations)
        sys.exit(bool(violations))
    if arguments.seed is None:
        arguments.seed = random.randrange(10**6)
    print(f"seed {arguments.seed}")
    names = arguments.store or list(scenes.KINDS)
    if arguments.plan:
        for name, faults in draw_all(names, arguments):
            print(f"{name}: {', '.join(faults)}")
        return
    results = asyncio.run(run(arguments, names))
    print_table(results)
    for result in results:
        if result.failed:
            print(f"{result.name}:", result.broken)
            for problem in (*result.hung, *result.unavailable):
                print(f"  {problem}")
            print_violations(result.history, result.violations)
    sys.exit(any(result.failed for result in results))


if __name__ == "__main__":
    main()
