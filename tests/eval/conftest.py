from __future__ import annotations

import pytest
import torch

from tests.eval import tiny


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizers():
    return {
        "digits split": tiny.byte_level("each"),
        "digits grouped": tiny.byte_level("grouped"),
        "digits grouped, BOS": tiny.byte_level("grouped", bos=True),
        "metaspace": tiny.metaspace(),
    }
