from __future__ import annotations

import pytest

from tests.eval import tiny


@pytest.fixture(scope="session")
def tokenizers():
    return {
        "digits split": tiny.byte_level("each"),
        "digits grouped": tiny.byte_level("grouped"),
        "digits grouped, BOS": tiny.byte_level("grouped", bos=True),
        "metaspace": tiny.metaspace(),
    }
