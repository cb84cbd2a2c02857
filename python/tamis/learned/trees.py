"""Gradient boosted trees over levels, trained by LightGBM or CatBoost."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tamis.learned import flat

Library = Literal["lightgbm", "catboost"]

LIBRARIES = ("lightgbm", "catboost")

_LEARNING_RATE = 0.1

_ENTRIES_PER_THREAD = 30_000_000
"""Entries of the matrix per thread of LightGBM: seconds of work."""


def grow_trees(
    library: Library,
    matrix: Any,
    labels: npt.NDArray[np.float64],
    trees: int,
    leaves: int,
    seed: int,
) -> flat.Forest:
    """Train trees on levels; the features of nodes are columns of the matrix."""
    grow = _with_lightgbm if library == "lightgbm" else _with_catboost
    return grow(matrix, labels, trees, leaves, seed)


def _with_lightgbm(
    matrix: Any, labels: npt.NDArray[np.float64], trees: int, leaves: int, seed: int
) -> flat.Forest:
    try:
        import lightgbm
    except ImportError:
        raise _missing("LightGBM", "learned") from None
    entries = matrix.nnz if hasattr(matrix, "nnz") else matrix.size
    settings = {
        "objective": "binary",
        "num_leaves": leaves,
        "learning_rate": _LEARNING_RATE,
        "max_bin": 255,
        "min_data_in_bin": 1,
        "bin_construct_sample_cnt": 20_000,  # counts have few values, and levels are bins already
        "min_data_in_leaf": min(20, max(1, len(labels) // 50)),
        "deterministic": True,
        "force_row_wise": True,
        # Threads synchronize at every split in busy loops, so they pay off only for large data.
        "num_threads": min(os.cpu_count() or 1, 1 + entries // _ENTRIES_PER_THREAD),
        "seed": seed % 2**31,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(matrix.astype(np.float32, copy=False), label=labels, free_raw_data=True)
    booster = lightgbm.train(settings, data, num_boost_round=trees)
    return flat.Forest(
        [_flatten(info["tree_structure"]) for info in booster.dump_model()["tree_info"]]
    )


def _missing(library: str, extra: str) -> ImportError:
    return ImportError(
        f'kind "gbt" needs {library}: pip install tamis[{extra}]; '
        '"logistic" and "svm" need no other package'
    )


def _flatten(root: dict[str, Any]) -> flat.Tree:
    """Flatten a LightGBM tree, parents before their children."""
    tree = flat.Tree([], [])

    def place(node: dict[str, Any]) -> int:
        if "split_feature" not in node:
            tree.leaves.append(float(node["leaf_value"]))
            return flat.LAST_PLACE - (len(tree.leaves) - 1)
        at = len(tree.nodes)
        tree.nodes.append((0, 0, 0, 0))
        level = max(0, int(np.floor(node["threshold"])))
        left, right = place(node["left_child"]), place(node["right_child"])
        tree.nodes[at] = (int(node["split_feature"]), level, left, right)
        return at

    place(root)
    return tree


def _with_catboost(
    matrix: Any, labels: npt.NDArray[np.float64], trees: int, leaves: int, seed: int
) -> flat.Forest:
    try:
        import catboost
    except ImportError:
        raise _missing("CatBoost", "catboost") from None
    classifier = catboost.CatBoostClassifier(
        iterations=trees,
        depth=math.ceil(math.log2(leaves)),
        learning_rate=_LEARNING_RATE,
        border_count=254,
        # No randomness: the same data give the same trees.
        bootstrap_type="No",
        random_strength=0,
        boosting_type="Plain",
        random_seed=seed % 2**31,
        allow_writing_files=False,
        verbose=False,
    )
    classifier.fit(matrix.astype(np.float32), labels.astype(np.int32))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.json")
        classifier.save_model(str(path), format="json")
        model = json.loads(path.read_text())
    scale, (bias,) = model["scale_and_bias"]

    def tree(dumped: dict[str, Any]) -> flat.Tree:
        # A tree that found no useful split has none.
        splits = dumped.get("splits") or []
        nodes: list[tuple[int, ...]] = [
            (split["float_feature_index"], max(0, math.floor(split["border"]))) for split in splits
        ]
        return flat.Tree(nodes, [scale * leaf for leaf in dumped["leaf_values"]])

    return flat.Forest([tree(each) for each in model["oblivious_trees"]], bias, oblivious=True)
