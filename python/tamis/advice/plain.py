"""Filters that treat all queries alike."""

from __future__ import annotations

from collections.abc import Iterator

from tamis.advice.situation import Choice, Found, RuledOut, Situation, secret, unfit
from tamis.planning.kinds import KINDS, Kind, Option


def plain(situation: Situation) -> Iterator[Found]:
    """Filters that treat all queries alike: every option that has a reason to be chosen."""
    for kind in KINDS.values():
        for option in kind.options:
            if kind.sizes is not None and option.reason:
                yield _plain(situation, kind, option)


def _plain(situation: Situation, kind: Kind, option: Option) -> Found:
    if reason := unfit(situation, inserts=kind.inserts, deletes=kind.deletes):
        return RuledOut(option.name, reason)
    arguments = {**option.arguments, **situation.sizing}
    assert kind.sizes is not None
    try:
        size = kind.sizes.size(situation.keys, **arguments)
    except ValueError as error:
        return RuledOut(option.name, str(error))
    rate = size.rate(situation.keys)
    return Choice(
        option.name,
        "plain",
        kind.filter,
        arguments,
        expected_fpr=rate,
        fpr_bound=1.0 if "adversary" in situation.needs else rate,
        bits=size.bits,
        keys=situation.keys,
        absent_time=situation.check(option, present=False),
        present_time=situation.check(option, present=True),
        reason=option.reason + secret(situation),
    )
