# SPDX-License-Identifier: Apache-2.0
"""Reads every tensor of a checkpoint through index.h5 with h5py, from another working directory, and compares
it with the raw values that the test wrote down. Arguments: step directory, directory of expected values. The
latter has expected.json, [{path, dtype, shape, file}], and one raw file a tensor."""
import json
import os
import sys

import h5py
import numpy as np


def expected_array(directory, row):
    raw = np.fromfile(os.path.join(directory, row["file"]), dtype=np.uint8)
    if row["dtype"] == "bfloat16":  # the upper half of a float32
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(row["shape"])
    return raw.view(np.dtype(row["dtype"]).newbyteorder("<")).reshape(row["shape"])


def main():
    step, directory = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    os.chdir("/")
    with open(os.path.join(directory, "expected.json"), encoding="utf-8") as file:
        rows = json.load(file)
    elements = 0
    with h5py.File(os.path.join(step, "index.h5"), "r") as index:
        found = []
        index.visititems(lambda name, item: found.append("/" + name) if isinstance(item, h5py.Dataset) else None)
        assert sorted(found) == sorted([row["path"] for row in rows] + ["/trainer/config"]), found
        for row in rows:
            want, got = expected_array(directory, row), index[row["path"]][()]
            assert got.shape == want.shape, (row["path"], got.shape, want.shape)
            assert got.dtype == want.dtype, (row["path"], got.dtype, want.dtype)
            assert np.array_equal(got, want), (row["path"], got, want)
            elements += want.size
        trainer = dict(index["/trainer"].attrs)
        assert trainer["step"] == 7 and trainer["consumed_samples"] == 112 and trainer["optimizer_step"] == 6, trainer
        assert trainer["skipped"] == 1 and trainer["loss_scale"] == 65536.5, trainer
        config = index["/trainer/config"][()].decode("utf-8")
        assert config.startswith("train:") and "\u00e4" in config, config
    print(f"h5py: {len(rows)} tensors, {elements} elements equal")


main()
