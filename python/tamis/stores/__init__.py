"""Stores that a filter stands in front of, one small adapter each."""

from tamis.stores.hashes import Hashes

__all__ = ["Hashes"]
