"""Advice: which filter, how big, and what it will gain."""

from tamis.advice.advise import Advice, advise

__all__ = ["Advice", "advise"]
