"""Documents, their indexes and queries, for full-text search over titles and abstracts.

The paper's reviews of products cannot be had here; titles and abstracts of ACL papers stand in for
them, of 5 to 100 distinct words without stop words, as in the paper: 49,595 of them for I&S, as
many as there, and all for MI. Utilities are a right-skewed mixture of normal distributions; queries
are terms of documents that are drawn by utility, such that few documents match, and real queries
(TREC Million Query) that some document matches. Sizes are bits of signatures or of postings (32
each), without names and utilities, which every index needs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import tamis
from experiments import data
from tamis.text import ENGLISH, SearchIndex, words

POSTING = 32
SETS = {"I&S": 49_595, "MI": None}
DATA = ("acl_papers", "queries_mq60k")


@cache
def texts() -> tuple[list[str], list[str], list[list[str]]]:
    """Return names, texts and distinct words of all documents."""
    table = data.table("acl_papers", ["id", "title", "abstract"])
    names, documents, terms = [], [], []
    for name, title, abstract in zip(
        *(column.to_pylist() for column in table.columns), strict=True
    ):
        text = f"{title} {abstract or ''}"
        own = sorted(set(words(text)) - ENGLISH)
        if 5 <= len(own) <= 100:
            names.append(name)
            documents.append(text)
            terms.append(own)
    return names, documents, terms


def mixture(count, rng):
    """Return utilities of which a few are far larger than the rest."""
    means = rng.choice([1.0, 10.0, 50.0], count, p=[0.9, 0.09, 0.01])
    return np.abs(rng.normal(means, means / 3))


class Inverted:
    """Sorted ranks of documents by term; the first rank in all lists is the answer."""

    def __init__(self, terms, order, documents=None, longest=None):
        lists = defaultdict(list)
        for rank, document in enumerate(order[:documents].tolist()):
            for term in terms[document]:
                lists[term].append(rank)
        self.lists = {term: np.array(ranks[:longest], np.uint32) for term, ranks in lists.items()}
        self.bits = POSTING * sum(len(ranks) for ranks in self.lists.values())

    def matches(self, query):
        lists = [self.lists.get(term) for term in query]
        if any(ranks is None for ranks in lists):
            return np.zeros(0, np.uint32)
        lists.sort(key=len)
        found = lists[0]
        for other in lists[1:]:
            places = np.minimum(np.searchsorted(other, found), len(other) - 1)
            found = found[other[places] == found]
        return found

    def first(self, query):
        found = self.matches(query)
        return int(found[0]) if len(found) else None


class DocumentSets:
    """The words of the best documents, scanned in order."""

    def __init__(self, terms, order, documents):
        self.sets = [frozenset(terms[document]) for document in order[:documents].tolist()]

    def first(self, query):
        wanted = set(query)
        return next((rank for rank, own in enumerate(self.sets) if wanted <= own), None)


class Signatures:
    """`tamis.text.SearchIndex`."""

    def __init__(self, index, place, verify):
        self.index, self.place, self.verify = index, place, verify

    def first(self, query):
        found = self.index.search(" ".join(query), 1, verify=self.verify)
        return self.place[found[0]] if found else None


class Paper:
    """Truncated Bloom filters, allocated by the paper's relaxation, queried one by one."""

    def __init__(self, collection, place):
        self.collection, self.place = collection, place

    def first(self, query):
        offsets, ids = self.collection.candidates_many(query)
        found = self.place[ids[: offsets[1]]]
        for i in range(1, len(query)):
            found = np.intersect1d(found, self.place[ids[offsets[i] : offsets[i + 1]]])
        return int(found.min()) if len(found) else None


def drawn(terms, utility, full, size, count, rng):
    """Return terms of documents drawn by utility, such that at most ten documents match."""
    queries = []
    for document in rng.choice(len(terms), 4 * count, p=utility / utility.sum()).tolist():
        for _ in range(10):
            query = rng.choice(terms[document], size, replace=False).tolist()
            if len(full.matches(query)) <= 10:
                queries.append(query)
                break
        if len(queries) == count:
            break
    return queries


def typed(full, size, count, rng):
    """Return the first terms of real queries that some document matches."""
    queries = []
    for query in rng.permutation(data.table("queries_mq60k")["query"].to_pylist()).tolist():
        own = list(dict.fromkeys(term for term in words(query) if term not in ENGLISH))[:size]
        if len(own) == size and len(full.matches(own)):
            queries.append(own)
        if len(queries) == count:
            break
    return queries


def fitting(costs, budget):
    """Return how many of the first items fit into a budget."""
    return int(np.searchsorted(np.cumsum(costs), budget, side="right"))


def longest(full, budget):
    """Return the longest length to truncate all lists to, for a budget."""
    lengths = np.array([len(ranks) for ranks in full.lists.values()])
    low, high = 0, int(lengths.max())
    while low < high:
        middle = (low + high + 1) // 2
        fits = POSTING * np.minimum(lengths, middle).sum() <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


@dataclass
class Corpus:
    """Documents in order of utility, with every index over them, and queries."""

    terms: list[list[str]]
    order: Any
    rank: Any
    place: dict[str, int]
    full: Inverted
    index: Any
    ribbons: Any
    collection: Any
    asked: dict[str, list[list[str]]]
    truth: dict[str, list[int | None]]

    @property
    def smallest(self) -> int:
        """The bits of the smallest index: the budget is a part of them, as in the paper."""
        return min(self.full.bits, self.index_bits, int(self.collection.full.sum()))

    index_bits: int = 0
    overhead: int = 0
    beside: int = 0

    def methods(self, percent: int, scans: bool = True) -> dict[str, Any]:
        """Return every index for a budget in percent of the smallest."""
        budget = self.smallest * percent // 100
        self.index.allocate(budget=self.overhead + budget // 8)
        self.collection.allocate(budget=self.beside + budget // 8, method="relaxation")
        self.ribbons.allocate(budget=self.ribbons.min_budget + budget // 8)
        postings = np.array([POSTING * len(self.terms[i]) for i in self.order])
        strings = np.array([8 * sum(len(t) for t in self.terms[i]) for i in self.order])
        found = {
            "paper": Paper(self.collection, self.rank),
            "ours": Signatures(self.index, self.place, False),
            "ours, ribbons": Signatures(self.ribbons, self.place, False),
            "ours, verified": Signatures(self.index, self.place, True),
            "TMII": Inverted(self.terms, self.order, fitting(postings, budget)),
            "TMDS": DocumentSets(self.terms, self.order, fitting(strings, budget)),
        }
        if scans:
            found["TKII"] = Inverted(self.terms, self.order, longest=longest(self.full, budget))
        return found


@cache
def corpus(name: str, quick: bool) -> Corpus:
    """Build every index over the documents of a set."""
    rng = np.random.default_rng(0)
    names, documents, terms = texts()
    count = (
        {"I&S": 5000, "MI": 10_000}[name] if quick else min(SETS[name] or len(names), len(names))
    )
    names, documents, terms = names[:count], documents[:count], terms[:count]
    own = dict(zip(names, documents, strict=True))
    utility = mixture(len(terms), rng)
    order = np.argsort(-utility, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    full = Inverted(terms, order)
    index = SearchIndex.build(own, utility=utility, stop_words=ENGLISH)
    ribbons = SearchIndex.build(
        own, utility=utility, stop_words=ENGLISH, keep_texts=False, kind="ribbon"
    )
    collection = tamis.Collection.build(
        zip(names, terms, strict=True), utility=utility, kind="truncated"
    )
    few = 40 if quick else 300  # the same queries for every method
    asked = {
        "drawn pairs": drawn(terms, utility, full, 2, few, rng),
        "drawn triples": drawn(terms, utility, full, 3, few, rng),
        "typed pairs": typed(full, 2, few, rng),
        "typed triples": typed(full, 3, few, rng),
    }
    truth = {kind: [full.first(query) for query in queries] for kind, queries in asked.items()}
    place = dict(zip(names, rank.tolist(), strict=True))
    made = Corpus(terms, order, rank, place, full, index, ribbons, collection, asked, truth)
    made.index_bits = index.size_in_bits
    made.overhead = index.size_in_bytes - (index.size_in_bits + 7) // 8
    made.beside = collection.size_in_bytes - (collection.size_in_bits + 7) // 8
    return made


def precision(method: Any, queries: Any, truth: Any) -> float:
    """Return the part of the queries whose first result is the best document."""
    return float(np.mean([method.first(q) == best for q, best in zip(queries, truth, strict=True)]))
