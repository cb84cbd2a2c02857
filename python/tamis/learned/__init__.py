"""Classifiers for learned filters: trained here, or any object with ``predict_proba``."""

from tamis.learned.classifier import Classifier, Model, Scorer, scorer
from tamis.learned.training import train

__all__ = ["Classifier", "Model", "Scorer", "scorer", "train"]
