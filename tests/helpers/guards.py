"""Shared by the tests of guard."""

import time

import tamis


def quotient(capacity=200):
    return tamis.Quotient(capacity=capacity, fpr=2**-3)


def telescoping(capacity=200):
    return tamis.Telescoping(capacity=capacity, fpr=2**-3, seed=3)


def absent_key(g, start=10_000):
    """A key that the filter rejects."""
    return next(key for key in range(start, start + 10_000) if key not in g.filter)


def set_lease(g, **times):
    """Set when the lease is renewed and when it ends, as if time had passed."""
    with g.driver._lock:
        vars(g.driver.protocol).update(times)
        g.driver._set_deadline()


def until(done, seconds=30):
    """Wait for something that happens in the background."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)
