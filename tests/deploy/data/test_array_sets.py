"""Sets of arrays beside other files of the same name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from deploy.data.array_sets import load_set
from deploy.files import sha256_file


def test_a_calibration_cache_with_the_name_of_its_set_is_no_manifest(tmp_path: Path) -> None:
    arrays, beside = tmp_path / "set.npz", tmp_path / "set.json"
    np.savez(arrays, x=np.arange(20.0).reshape(10, 2))
    beside.write_text(json.dumps({"format": "quietformer calibration", "tensors": {}}))
    batches, identity = load_set(arrays, batch_size=4)
    assert [len(batch["x"]) for batch in batches] == [4, 4, 2]
    assert identity == {"kind": "npz", "sha256": sha256_file(arrays)}
    beside.write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(ValueError, match=r"its manifest set\.json says 000000000000"):
        load_set(arrays)
    beside.write_text("[]")
    with pytest.raises(ValueError, match=r"its manifest set\.json says nothing"):
        load_set(arrays)
