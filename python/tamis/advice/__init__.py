"""Advice: which filter, how large, and what it saves."""

from tamis.advice.advise import Advice, advise

__all__ = ["Advice", "advise"]
