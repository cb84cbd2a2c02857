"""Advice: which filter, how large, and what it saves.

* `advise`: `tamis.advise`, from arguments to ranked choices; filters that treat all queries alike
* `advice`: `tamis.Advice`, the result; `text` and `page` render it
* `situation`: the inputs, a choice, and its cost
* `stacked`, `adaptive`, `learned`, `streams`, `sets`: the choices of the other families
* `turnover`: what filters lose while keys are replaced
* `measurement`: build every choice and run queries on it
"""

from tamis.advice.advice import Advice
from tamis.advice.advise import advise

__all__ = ["Advice", "advise"]
