"""Planning without training: a study whose base is a name alone."""

from __future__ import annotations

import pytest

from cptkit.study import experiments
from cptkit.train.spec import ModelSpec


@pytest.fixture
def lab(tmp_path, monkeypatch):
    # Planning trains nothing: a base is a name that depends on what is to be pretrained.
    def base(self):
        made = experiments.base_run(self.profile)
        return ModelSpec(start=f"run:{made.model.hidden}-{made.tokens}")

    monkeypatch.setattr(experiments.Study, "base", base)
    return experiments.open_study("lab", root=tmp_path, progress=False)
