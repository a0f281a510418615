#!/usr/bin/env python3
"""Every GGUF type that omniq reads, over blocks of random bytes (all codes, all scales), against the gguf package:

    pip install gguf numpy
    tests/interop/gguf_check.py build/omniq

Writes a file per type with the package's own writer, reads it with `omniq inspect --tensor`, and compares bits. Types
that the package does not decode are named. Exit status 1 when a value differs."""
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from gguf import quants

ROWS, BLOCKS = 8, 6
NAMES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
         "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"]


def check(omniq, folder, name, rng):
    kind = gguf.GGMLQuantizationType[name]
    elems, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (ROWS, BLOCKS * size), dtype=np.uint8)
    if elems == 1:
        raw = raw.view(np.float16 if name == "F16" else np.uint8)
    path = os.path.join(folder, name + ".gguf")
    writer = gguf.GGUFWriter(path, "none")
    if name == "F16":
        writer.add_tensor("x.weight", raw)
        wanted = raw.astype(np.float32)
    else:
        writer.add_tensor("x.weight", raw, raw_dtype=kind)
        with np.errstate(all="ignore"):
            wanted = quants.dequantize(raw, kind).astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = subprocess.run([omniq, "inspect", path, "--tensor", "x.weight", "--limit", str(wanted.size), "--json"],
                          capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout.startswith("{"):
        return f"{name}: {done.stderr.strip()}"
    values = json.loads(done.stdout)["values"]
    is_ = np.array([float(str(v).replace("Infinity", "inf")) for v in values], np.float64).astype(np.float32)
    same = (is_ == wanted.ravel()) | (np.isnan(is_) & np.isnan(wanted.ravel()))
    return None if same.all() else f"{name}: {int((~same).sum())} of {wanted.size} values differ"


def main():
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            said = check(sys.argv[1], folder, name, np.random.default_rng(7))
            print(said or f"{name}: equal")
            bad += said is not None
    sys.exit(1 if bad else 0)


main()
