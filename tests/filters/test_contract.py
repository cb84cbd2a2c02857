import inspect

import pytest
from contract import CHECKS, SPECIMENS


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, specimen, tmp_path):
    if "tmp_path" in inspect.signature(check).parameters:
        check(specimen, tmp_path=tmp_path)
    else:
        check(specimen)
