#!/usr/bin/env python3
"""Leading rows of one layer per producer's case -> cases/<producer>/<case>: config as written, the layer's tensors cut to
`rows`, the producer's values and outputs for them. Usage: make_cases.py FOLDER_OF_WHOLE_CASES"""
import hashlib, json, os, shutil, struct, sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}

# case: (layer, rows, {suffix: axis that rows are cut along, with rows per element}); 0 and 1: axis 0.
ROWS = (0, 1)
GPTQ = {"qweight": (1, 1), "scales": (1, 1)}
CASES = {
    "autoround/w2_sym_g64": ("model.layers.1.self_attn.q_proj", 16, {**GPTQ, "qzeros": (1, 16)}),
    "autoround/w3_sym_g128": (None, 32, {**GPTQ, "qzeros": (1, 32 / 3)}),
    "autoround/w4_asym_g32_gptq": ("model.layers.0.self_attn.q_proj", 16, {**GPTQ, "qzeros": (1, 8)}),
    "autoround/w4_asym_g64_awq": ("model.layers.1.self_attn.q_proj", 16,
                                  {"qweight": (1, 8), "qzeros": (1, 8), "scales": (1, 1)}),
    "autoround/w4_sym_g32_default": (None, 16, {**GPTQ, "qzeros": (1, 8)}),
    "autoround/w8_sym_g64": (None, 16, {**GPTQ, "qzeros": (1, 4)}),
    "autoround/mixed_w4_w8_bf16": ("model.layers.0.self_attn.v_proj", 16, {**GPTQ, "qzeros": (1, 4)}),
    "autoround/nvfp4": ("model.layers.0.self_attn.q_proj", 16, {}),
    "autoround/mxfp8": ("model.layers.1.self_attn.q_proj", 16, {}),
    "autoround/mxfp4": (None, 16, {}),
    "compressed-tensors/w4a16_g128": ("model.layers.1.self_attn.q_proj", 16, {}),
    "compressed-tensors/w3a16": (None, 16, {}),
    "compressed-tensors/nvfp4": ("model.layers.0.self_attn.q_proj", 16, {}),
    "compressed-tensors/mxfp4": (None, 16, {}),
    "compressed-tensors/mxfp8": (None, 16, {}),
    "modelopt/nvfp4_toybox": ("layers.0.attention.to_q", 16, {}),
    "modelopt/mxfp8_toybox": (None, 16, {}),
    "modelopt/nvfp4_awq_lite_toybox": ("layers.2.attention.to_q", 16, {}),
    "modelopt/nvfp4_svdquant_toybox": ("layers.4.attention.to_q", 16, {}),
    "modelopt/int8_smoothquant_qwen3": ("model.layers.0.self_attn.q_proj", 16, {}),
    "bitsandbytes/llm_int8": ("layers.6.attention.to_q", 16, {}),
    "torchao/intx_int4_g32": ("layers.1.attention.to_q", 16, {}),
    "torchao/mxfp8": ("layers.0.attention.to_q", 128, {}),
    "torchao/mxfp4": ("layers.1.attention.to_q", 128, {}),
}
WHOLE = {"g_idx", "weight_global_scale", "input_global_scale", "weight_scale_2", "input_scale", "pre_quant_scale",
         "svdquant_lora_a", "weight_format"}


def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    meta = head.pop("__metadata__", None)
    out = {}
    for name, t in head.items():
        a, b = t["data_offsets"]
        raw = np.frombuffer(data[8 + n + a:8 + n + b], np.uint8)
        out[name] = (t["dtype"], raw.reshape(t["shape"] + [SIZES[t["dtype"]]]))
    return out, meta


def write(path, tensors, meta=None):
    head, data = ({"__metadata__": meta} if meta else {}), b""
    for name, (dtype, a) in sorted(tensors.items()):
        raw = np.ascontiguousarray(a).tobytes()
        head[name] = {"dtype": dtype, "shape": list(a.shape[:-1]), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def cut(case, suffix, dtype, a, rows, axes):
    if suffix in WHOLE or a.ndim == 1:
        return a
    if suffix == "weight_shape":
        shape = np.frombuffer(a.tobytes(), np.int64).copy()
        shape[0] = rows
        return np.frombuffer(shape.tobytes(), np.uint8).reshape(2, 8)
    if suffix == "_weight_scale" and dtype == "F8_E8M0":  # tiles of 128 rows, folded
        return a.reshape(-1, 1)[:a.size // ((a.shape[0] + 31) // 32) * (rows // 128)].reshape(rows // 4, -1, 1)
    axis, per = axes.get(suffix, ROWS)
    return a.take(range(int(round(rows / per))), axis=axis)


def make(source, case, layer, rows, axes):
    folder, out = os.path.join(source, case), os.path.join(HERE, "cases", case)
    told = json.load(open(os.path.join(folder, "case.json")))
    tensors, meta = read(os.path.join(folder, told["checkpoint"]))
    expected, _ = read(os.path.join(folder, "expected.safetensors"))
    if not layer:
        layer = next((l for l in told["outputs"]), None) or next(iter(told["dequant"]))
    is_new = not os.path.exists(out)
    os.makedirs(out, exist_ok=True)
    small = {n: (d, cut(case, n[len(layer) + 1:], d, a, rows, axes))
             for n, (d, a) in tensors.items() if n.startswith(layer + ".")}
    if meta and layer + ".weight" in meta:
        meta = {k: v for k, v in meta.items() if k in ("format", layer + ".weight")}
        meta["tensor_names"] = json.dumps([layer + ".weight"])
    write(os.path.join(out, "model.safetensors"), small, meta)
    for name in ("config.json", "hf_quant_config.json"):
        if os.path.exists(os.path.join(folder, name)):
            config = json.load(open(os.path.join(folder, name)))
            keep = {k: config[k] for k in ("quantization_config", "producer", "quantization") if k in config}
            json.dump(keep, open(os.path.join(out, name), "w"), indent=1)
    d = told["dequant"][layer]
    index = [r for r in d["rows"] if r < rows]
    values = expected[layer + ".dequant_rows"]
    wanted = {layer + ".dequant_rows": (values[0], values[1][[d["rows"].index(r) for r in index]])}
    note = {"checkpoint": "model.safetensors", "producer": told["producer"], "versions": told["versions"],
            "dequant": {layer: {"shape": [rows, d["shape"][1]], "dtype": d["dtype"], "rows": index}}, "outputs": {}}
    if layer in told["outputs"]:
        o = told["outputs"][layer]
        note["outputs"][layer] = {k: o[k] for k in ("x", "y", "dtype", "how")}
        wanted[o["x"]] = expected[o["x"]]
        y = expected[o["y"]]
        wanted[o["y"]] = (y[0], y[1][:, :rows])
    write(os.path.join(out, "expected.safetensors"), wanted)
    json.dump(note, open(os.path.join(out, "case.json"), "w"), indent=1)
    size = sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out))
    print(f"{case}: {layer} [{rows}, {d['shape'][1]}], {size} bytes{' (new)' if is_new else ''}")


if __name__ == "__main__":
    for case, (layer, rows, axes) in CASES.items():
        if len(sys.argv) < 3 or case in sys.argv[2:]:
            make(sys.argv[1], case, layer, rows, axes)
