"""Advice: which filter, how large, and what it saves.

* `advise`: `tamis.advise`, from arguments to ranked choices
* `advice`: `tamis.Advice`, the result; `text`, `explanation` and `page` render it
* `situation`: the inputs, a choice, and its cost
* `plain`, `stacked`, `adaptive`, `learned`, `streams`, `sets`: the choices of each family
* `turnover`: what filters lose while keys are replaced
* `measurement`: build every choice and run queries on it
"""

from tamis.advice.advice import Advice
from tamis.advice.advise import advise

__all__ = ["Advice", "advise"]
