"""A store, a filter and other writers, all as plain data, around the real `Protocol` of guards.

`World.step` does one thing at a time, chosen at random: a query or write begins, the store carries
out a request, a reply arrives, late or twice or never, time passes, somebody else writes, the
process crashes. So requests of several threads overlap in every way that the driver's locks allow.
After each step every "no" that the gate would give is compared with the store.
"""

from collections import Counter
from itertools import count

from tamis.guard import protocol as p
from tamis.guard.protocol import Goal, Verdict
from tamis.stores.base import Changes

KEYS, BUCKETS, LEASE = range(8), 6, 10.0


class Filter(Counter):
    """Counts keys by bucket, so that a key removed twice takes another one with it."""

    def put(self, keys):
        self.update(key % BUCKETS for key in keys)

    def drop(self, keys):
        for key in keys:
            if self[key % BUCKETS]:
                self[key % BUCKETS] -= 1

    def accepts(self, key):
        return self[key % BUCKETS] > 0


class Store:
    """The set of keys with its journal, lease and index."""

    def __init__(self, world, shared, journal):
        self.world, self.shared, self.has_journal = world, shared, journal
        self.keys, self.position = set(), "0"
        self.journal = [("0", [], [])]
        self.holder, self.until = None, 0.0
        self.index = None, None
        """Who maintains the index, and the position of its keys."""
        self.absent = dict.fromkeys(KEYS, (0, 0.0))
        """For each key the latest step and time at which it was absent."""

    def write(self, keys, adding):
        changed = [key for key in keys if (key in self.keys) != adding]
        if changed:
            self.world.now += 1
            self.absent.update((key, (self.world.now, self.world.time)) for key in changed)
            self.keys = self.keys | {*changed} if adding else self.keys - {*changed}
            self.position = str(int(self.position) + 1)
            row = (self.position, changed, []) if adding else (self.position, [], changed)
            self.journal.append(row)

    def was_absent(self, key):
        """The latest step and time at which the key was absent."""
        return self.absent[key] if key in self.keys else (self.world.now, self.world.time)

    def changes(self, since, limit=None):
        if since == self.position:
            return Changes(since, [], [])
        positions = [row[0] for row in self.journal]
        if since not in positions or not self.has_journal:
            return None
        rows = self.journal[positions.index(since) + 1 :]
        more = limit is not None and len(rows) > 1 and self.world.chance(4)
        rows = rows[:1] if more else rows
        net = Counter(key for _, added, _ in rows for key in added)
        net.subtract(key for _, _, removed in rows for key in removed)
        added = [key for key in net if net[key] > 0]
        return Changes(rows[-1][0], added, [key for key in net if net[key] < 0], more)

    def given(self, owner, changes):
        """The index of a guard follows what it is given."""
        if self.index[0] == owner and changes is not None:
            self.index = owner, changes.position

    def lease(self, owner):
        if self.holder not in (None, owner) and self.world.time < self.until:
            return False
        self.holder, self.until = owner, self.world.time + LEASE
        return True

    def may_write(self, owner):
        return self.shared or (self.holder == owner and self.world.time < self.until)


class Thread:
    """One exchange: what began it and when, and whether it holds the guard's locks."""

    def __init__(self, kind, world):
        self.kind, self.began, self.time = kind, world.now, world.time
        self.write = self.keys = self.candidate = None
        self.adding = self.open = True


class World:
    def __init__(self, random, *, shared, journal, staleness, adapts, machine=p.Protocol):
        self.random, self.machine = random, machine
        self.options = {"shared": shared, "max_staleness": staleness, "adapts": adapts}
        self.staleness = staleness
        self.now, self.time = 0, 1000.0
        self.lost = random.choice([4, 8, 30])
        """One in how many replies is lost."""
        self.times = random.choice([[0.1, 1.0], [0.5, 2.0, 4.0], [0.1, 1.0, 3.0, 30.0]])
        self.names, self.numbers = (f"owner {i}" for i in count()), count(1)
        self.store = Store(self, shared, journal)
        self.late, self.snapshot = [], None
        self.answers = Counter()
        self.start()

    def chance(self, n):
        return self.random.randrange(n) == 0

    def start(self):
        """Open the guard, as a new process; requests of the old one may still arrive."""
        self.protocol = self.machine(self.names, lease=LEASE, **self.options)
        self.protocol.world = self  # for protocols that are broken on purpose
        self.filter, self.threads, self.locked = Filter(), [], None
        self.requests, self.replies = [], []
        thread = self.begin("open", lock=True)
        self.feed(p.LeaseWanted(self.time), thread)

    # The steps.

    def step(self):
        self.now += 1
        actions = [self.pass_time, self.query, self.put, self.delete, self.others_write]
        actions += [self.work] if self.protocol.trusted and self.chance(2) else []
        actions += [] if self.protocol.trusted else [self.rebuild] * 4
        if self.requests:
            actions += [self.carry_out] * 6
        if self.replies:
            actions += [self.deliver] * 6
        if self.late:
            actions += [self.arrive]
        if self.chance(40):
            actions = [self.crash, self.save, self.lose_journal]
        self.random.choice(actions)()
        self.check()

    def check(self):
        """What the gate would answer now, and what the index is used for."""
        deadline = self.protocol.deadline
        if deadline is not None and self.time < deadline:
            self.answers["gate"] += 1
            self.check_denied(self.now, self.time)
        index = self.store.index
        if self.protocol.may_use_index and self.locked is None and index[0] == self.protocol.owner:
            assert index[1] == self.protocol.position

    def check_denied(self, began, time):
        for key in KEYS:
            if not self.filter.accepts(key):
                step, at = self.store.was_absent(key)
                assert step >= began or (self.staleness and at > time - self.staleness), key

    def pass_time(self):
        self.time += self.random.choice(self.times)

    def begin(self, kind, lock=False):
        thread = Thread(kind, self)
        self.threads.append(thread)
        if lock:
            self.locked = thread
        return thread

    def query(self):
        self.feed(p.Asked(self.time), self.begin("query"))

    def work(self):
        """Something that the guard does in the background, with all locks or without."""
        event = self.random.choice([p.FollowWanted, p.RenewWanted, p.LeaseWanted, p.RebuildWanted])
        if event is p.FollowWanted:
            self.feed(event(self.time), self.begin("work"))
        elif self.locked is None:
            if event is p.RebuildWanted and self.chance(3) and self.snapshot and self.may_adopt():
                self.take_over(self.begin("work", lock=True))
            else:
                kind = "rebuild" if event is p.RebuildWanted else "work"
                self.feed(event(self.time), self.begin(kind, lock=True))

    def rebuild(self):
        if self.locked is None:
            self.feed(p.RebuildWanted(self.time), self.begin("rebuild", lock=True))

    def may_adopt(self):
        return not (self.protocol.holds_lease(self.time) or self.protocol.outcome_unknown)

    def take_over(self, thread):
        thread.candidate = Filter(self.snapshot[0])
        self.feed(p.Built(self.snapshot[1], self.time, in_one_piece=True), thread)

    def put(self):
        self.start_write(adding=True)

    def delete(self):
        self.start_write(adding=False)

    def start_write(self, adding):
        if self.locked is not None:
            return
        thread = self.begin("write", lock=True)
        thread.adding, thread.keys = adding, self.random.sample(KEYS, self.random.randrange(1, 3))
        if self.protocol.may_write(self.time):
            self.write(thread)
        else:
            self.feed(p.WriteWanted(self.time), thread)

    def write(self, thread):
        """Insert ghosts, and send the write."""
        thread.write = next(self.numbers)
        if thread.adding:
            # A key that the filter has, and the store at the moment, is not inserted again.
            new = [k for k in thread.keys if not (self.filter.accepts(k) and k in self.store.keys)]
            ghosts = [k for k in new if not self.protocol.is_ghost(k)]
            again = [k for k in thread.keys if self.protocol.is_ghost(k)]
            self.feed(p.Began(thread.write, [*ghosts, *again]), thread)
            self.filter.put(ghosts)
        request = "write", self.protocol.owner, self.protocol.position, self.time
        self.requests.append((request, thread))

    def others_write(self):
        """Somebody else, who needs the lease in a store that only guards write."""
        store, keys = self.store, self.random.sample(KEYS, self.random.randrange(1, 4))
        if not store.shared:
            other = "another guard"
            if not store.lease(other):
                return
            store.index = other, None
        store.write(keys, adding=self.chance(2))

    def carry_out(self):
        """Let the store carry out a request; its reply may be lost."""
        request, thread = self.requests.pop(self.random.randrange(len(self.requests)))
        lost = self.chance(self.lost)
        if request[0] == "write":
            self.carry_out_write(request, thread, lost)
            return
        # What is lost may not even have been carried out.
        event = None if lost and self.chance(2) else self.ask_store(request)
        if not lost:
            self.replies.append((event, thread))
        elif isinstance(request, p.CheckChanges):
            self.feed(p.CheckFailed(request), thread)
            self.end(thread)
        else:
            self.end(thread)

    def ask_store(self, request):
        store = self.store
        if isinstance(request, p.CheckChanges):
            changes = store.changes(request.since, request.limit)
            store.given(self.protocol.owner, changes)
            return p.ChangesChecked(request, None, changes)
        if isinstance(request, p.TakeLease):
            return p.Leased(request, store.lease(request.owner))
        if isinstance(request, p.Release):
            if store.holder == request.owner:
                store.holder = None
            return p.Released(request, self.time)
        assert isinstance(request, p.Attach)
        owner = request.lease.owner
        if store.holder != owner or self.time >= store.until:
            return p.Leased(request.lease, granted=False)
        store.index = owner, None
        return p.Attached(request.lease)

    def carry_out_write(self, request, thread, lost):
        _, owner, since, at = request
        if lost:
            # The guard gives up; the write is carried out now, later or never.
            self.late.append((owner, thread.keys, thread.adding))
            if self.chance(4):
                self.arrive()
            self.feed(p.WriteFailed(thread.write, None), thread)
            self.end(thread)
        elif not self.store.may_write(owner):
            self.feed(p.LeaseLost(), thread)
            self.feed(p.WriteFailed(thread.write, written=False), thread)
            self.end(thread)
        else:
            self.store.write(thread.keys, thread.adding)
            told = self.chance(2)
            changes = self.store.changes(since) if told else None
            if told:
                self.store.given(self.protocol.owner, changes)
            committed = p.Committed(thread.write, at, since, changes, thread.keys)
            self.replies.append((committed, thread))

    def arrive(self):
        """A write whose reply nobody waits for is carried out, or refused."""
        owner, keys, adding = self.late.pop(self.random.randrange(len(self.late)))
        if self.store.may_write(owner):
            self.store.write(keys, adding)

    def deliver(self):
        """Deliver a reply, perhaps one that is delivered again later."""
        i = self.random.randrange(len(self.replies))
        event, thread = self.replies[i]
        again = isinstance(event, p.ChangesChecked | p.Leased) and self.chance(8)
        if isinstance(event, p.ChangesChecked) and event.changes != Changes(
            event.check.since, [], []
        ):
            if self.locked not in (None, thread):
                if event.check.goal is Goal.QUERY:
                    del self.replies[i]
                    self.feed(p.Busy(event.check), thread)
                return  # which waits for the locks
            self.locked = thread
        del self.replies[i]
        if again and thread.candidate is None:
            # For nobody, but what it leads to has to be right as well.
            nobody = Thread("nobody", self)
            nobody.began, nobody.time = thread.began, thread.time
            self.replies.append((event, nobody))
        self.feed(event, thread)

    def crash(self):
        """The process ends; writes on their way may still be carried out."""
        for request, thread in self.requests:
            if request[0] == "write":
                self.late.append((request[1], thread.keys, thread.adding))
        self.start()

    def save(self):
        if self.protocol.trusted and self.locked is None:
            self.snapshot = Filter(self.filter), self.protocol.position

    def lose_journal(self):
        del self.store.journal[:-1]

    # Effects.

    def feed(self, event, thread):
        for effect in self.protocol.handle(event):
            self.carry_out_effect(effect, thread)

    def carry_out_effect(self, effect, thread):
        if isinstance(effect, Verdict):
            self.end_exchange(effect, thread)
        elif isinstance(effect, p.Apply):
            self.apply(effect, thread)
        elif isinstance(effect, p.Drop):
            self.filter.drop(effect.keys)
        elif isinstance(effect, p.Use):
            self.filter = thread.candidate
            self.feed(p.Used(effect), thread)
        elif isinstance(effect, p.Start | p.Warn):
            pass  # `work` comes at any time
        elif not isinstance(effect, p.CheckChanges) or self.protocol.attached:
            # With all locks, and so not while another thread has them.
            if self.locked not in (None, thread):
                if isinstance(effect, p.CheckChanges | p.TakeLease) and thread.kind == "query":
                    self.feed(p.Busy(effect), thread)
                return  # else it waits; here it is given up
            self.locked = thread
            self.requests.append((effect, thread))
        else:
            self.requests.append((effect, thread))

    def apply(self, effect, thread):
        changed = thread.candidate if effect.check.goal is Goal.BUILD else self.filter
        changed.put(effect.insert)
        if self.chance(30):
            self.feed(p.ApplyFailed(effect, "interrupted"), thread)
            self.end(thread)
            return
        changed.drop(effect.remove)
        if thread.candidate is not None:
            thread.position = effect.changes.position
        self.feed(p.Applied(effect), thread)

    def end_exchange(self, verdict, thread):
        if verdict is Verdict.ANSWER:
            self.answers["check"] += 1
            self.check_denied(thread.began, thread.time)
        elif verdict is Verdict.PASS and thread.kind == "write":
            event = p.WriteFailed(thread.write, written=True, keys=len(thread.keys))
            self.feed(event, thread)
        elif verdict is Verdict.READY and thread.kind == "write" and thread.write is None:
            self.write(thread)
            return
        elif thread.kind == "rebuild" and verdict in (Verdict.READY, Verdict.REFUSE):
            if thread.candidate is None:
                self.build(thread)
                return
        elif thread.kind == "open" and thread.candidate is None:
            # A snapshot if there is one, and else the keys.
            if self.snapshot is not None and self.chance(2):
                self.take_over(thread)
            else:
                self.build(thread)
            return
        elif thread.candidate is not None and verdict in (Verdict.AGAIN, Verdict.PAUSE):
            self.feed(p.Built(thread.position, self.time), thread)
            return
        self.end(thread)

    def build(self, thread):
        thread.candidate, thread.position = Filter(), self.store.position
        thread.candidate.put(self.store.keys)
        self.feed(p.Built(thread.position, self.time), thread)

    def end(self, thread):
        if self.locked is thread:
            self.locked = None
        if thread in self.threads:
            self.threads.remove(thread)
