"""Fixtures of the tests of parquet."""

import pytest


@pytest.fixture
def lake(tmp_path):
    """Three files of ten row groups each."""
    from lakes import pq, users

    for i in range(3):
        pq.write_table(users(1000 * i, 1000), tmp_path / f"{i}.parquet", row_group_size=100)
    return tmp_path
