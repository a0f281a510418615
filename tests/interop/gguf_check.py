#!/usr/bin/env python3
"""Every GGUF type that omniq reads, over blocks of random bytes (all codes, all scales), against the gguf package:

    pip install gguf numpy
    tests/interop/gguf_check.py build/omniq

Writes a file per type with the package's own writer, reads it with `omniq inspect --tensor`, and compares bits. Then the
other way: `omniq quantize` writes the demo model's transformer in every type, the package's reader opens the file, and its
values are those of `omniq dequantize`, bit for bit. Exit status 1 when a value differs."""
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


MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "toybox", "transformer")
WRITTEN = NAMES + ["Q8_K"]


def floats(path):
    """The tensors of a safetensors file, as F32."""
    with open(path, "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        raw = data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[t["dtype"]]).astype(np.float32)
        out[name] = values.reshape(t["shape"])
    return out


def opened(path):
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "lumina2"
    out = {}
    for t in reader.tensors:
        shape = [int(d) for d in reversed(t.shape)]
        if t.tensor_type.name == "Q8_K":  # the package does not decode it: one f32, 256 codes, sums
            blocks = np.asarray(t.data).reshape(-1, 292)
            values = blocks[:, :4].copy().view(np.float32) * blocks[:, 4:260].view(np.int8).astype(np.float32)
        else:
            values = quants.dequantize(np.asarray(t.data), t.tensor_type)
        out[t.name] = values.astype(np.float32).reshape(shape)
    return out


def check_written(omniq, folder, name, names):
    path, plain = os.path.join(folder, "w.gguf"), os.path.join(folder, "w.safetensors")
    spec = json.dumps({"method": "gguf", "type": name})
    for words in (["quantize", MODEL, "--quantization", spec, "--names", names, "-o", path],
                  ["dequantize", path, "--dtype", "f32", "-o", plain]):
        done = subprocess.run([omniq, *words, "--force", "-q"], capture_output=True, text=True)
        if done.returncode:
            return f"{name}: {done.stderr.strip()}"
    theirs, ours = opened(path), floats(plain)
    if sorted(theirs) != sorted(ours):
        return f"{name}: other names"
    for key, values in theirs.items():
        if values.shape != ours[key].shape or not (values == ours[key]).all():
            return f"{name}: {key} differs"
    return None


def main():
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            said = check(sys.argv[1], folder, name, np.random.default_rng(7))
            print(said or f"{name}: equal")
            bad += said is not None
        for name, names in [(name, "source") for name in WRITTEN] + [("Q4_K", "original")]:
            said = check_written(sys.argv[1], folder, name, names)
            print(said or f"{name}, written with {names} names: equal")
            bad += said is not None
    sys.exit(1 if bad else 0)


main()
