#!/usr/bin/env python3
"""One layer of a tiny Qwen3 through ModelOpt's and Quark's own quantizers and exporters -> cases/<producer>/<case>: the layer's
tensors cut to leading rows, the values that its exported tensors mean and the producer's output for a random input.
Needs nvidia-modelopt, amd-quark, transformers and torch. Usage: make_producer_cases.py [CASE ...]"""
import copy, json, os, sys, tempfile
from importlib.metadata import version

import torch, transformers
import safetensors.torch as st

HERE = os.path.dirname(os.path.abspath(__file__))
LAYER, ROWS, INDEX = "model.layers.0.mlp.down_proj", 16, [0, 1, 6, 15]


def model():
    torch.manual_seed(0)
    c = transformers.Qwen3Config(vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=1,
                                 num_attention_heads=2, num_key_value_heads=2, head_dim=128, tie_word_embeddings=False)
    c.architectures = ["Qwen3ForCausalLM"]
    return transformers.Qwen3ForCausalLM(c).float().eval()


def x_of():
    return torch.randn(6, 256, generator=torch.Generator().manual_seed(9))


def tokens(i):
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(i))


def pairs(w):  # two rows a byte, two's complement
    q = torch.stack([w & 15, w >> 4], 1).reshape(-1, w.shape[1]).int()
    return torch.where(q > 7, q - 16, q).float()


def awq(w, signed):  # int32 [k, n/8] -> [n, k]
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    q = torch.stack([(w >> (4 * i)) & 15 for i in order], -1).reshape(w.shape[0], -1).T
    return torch.where(q > 7, q - 16, q).float() if signed else q.float()


E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])


def e2m1(w):
    return E2M1[torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1).long()]


def groups(s, k):
    return s.repeat_interleave(k // s.shape[1], 1)


def e8m0(s):
    return torch.ldexp(torch.ones(s.shape), s.int() - 127)


# ---- what exported tensors mean --------------------------------------------------------------------------------------

def int4_rows(t):
    return pairs(t["weight"]) * groups(t["weight_scale"], 256)


def int4_e4m3(t):
    g = t["weight_scale_2"]
    return (int4_rows(t) / g).to(torch.float8_e4m3fn).float() * g


def scaled(t):
    s = t["weight_scale"]
    return t["weight"].float() * (s[:, None] if s.ndim == 1 else s)


def quark_int4(t, signed):
    s, zp = t["weight_scale"].T, awq(t["weight_zero_point"], signed)
    return (awq(t["weight"], signed) - groups(zp, 256)) * groups(s, 256)


def quark_mxfp4(t):
    return e2m1(t["weight"]) * groups(e8m0(t["weight_scale"]), 256)


# ---- ModelOpt --------------------------------------------------------------------------------------------------------

def run_modelopt(config, out):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    m = mtq.quantize(model(), copy.deepcopy(getattr(mtq, config)), lambda m: [m(tokens(i)) for i in range(4)])
    with torch.no_grad():
        y = copy.deepcopy(m.get_submodule(LAYER))(x_of())
    export_hf_checkpoint(m, export_dir=out)
    return y


# ---- Quark -----------------------------------------------------------------------------------------------------------

def quark_configs():
    from quark.torch.quantization.config import config as q
    fp8 = dict(observer_method="min_max", is_dynamic=False)
    whole = dict(symmetric=True, scale_type="float", round_method="half_even", is_dynamic=False)
    return {
        "fp8_tensor": (q.FP8E4M3PerTensorSpec(**fp8), q.FP8E4M3PerTensorSpec(**fp8)),
        "fp8_channel": (q.FP8E4M3PerChannelSpec(is_dynamic=False, ch_axis=0),
                        q.FP8E4M3PerChannelSpec(is_dynamic=True, ch_axis=1)),
        "int8_channel": (q.Int8PerChannelSpec(**whole, ch_axis=0), q.Int8PerTensorSpec(observer_method="min_max", **whole)),
        "int4_group": (q.Int4PerGroupSpec(**whole, ch_axis=-1, group_size=32), None),
        "uint4_group": (q.Uint4PerGroupSpec(**{**whole, "symmetric": False}, ch_axis=-1, group_size=128), None),
        "mxfp4": (q.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False), q.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True)),
        "mxfp4_fp8": (q.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False), q.FP8E4M3PerTensorSpec(**fp8)),
    }


def run_quark(config, out):
    from torch.utils.data import DataLoader
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.quantization.config.config import QConfig, QLayerConfig
    w, a = (s and s.to_quantization_spec() for s in quark_configs()[config])
    q = ModelQuantizer(QConfig(global_quant_config=QLayerConfig(weight=w, input_tensors=a), exclude=["lm_head"]))
    m = q.freeze(q.quantize_model(model(), DataLoader([tokens(i)[0] for i in range(4)], batch_size=2)))
    with torch.no_grad():  # the quantizer of x takes rows of a batch together: each row by itself
        y = torch.cat([m.get_submodule(LAYER)(r[None, None])[0] for r in x_of()])
    export_safetensors(m, out)
    return y


AWQ_CUT = {"weight": (1, 8), "weight_scale": (1, 1), "weight_zero_point": (1, 8)}
CASES = {  # how it is made, what its tensors mean, axis and rows an element where they are not rows themselves
    "modelopt/w4a16_awq": (run_modelopt, "INT4_AWQ_CFG", int4_rows, {"weight": (0, 2)}),
    "modelopt/w4a8_awq": (run_modelopt, "W4A8_AWQ_BETA_CFG", int4_e4m3, {"weight": (0, 2)}),
    "modelopt/w8a16": (run_modelopt, "INT8_WEIGHT_ONLY_CFG", scaled, {}),
    "quark/fp8_tensor": (run_quark, "fp8_tensor", scaled, {}),
    "quark/fp8_channel": (run_quark, "fp8_channel", scaled, {}),
    "quark/int8_channel": (run_quark, "int8_channel", scaled, {}),
    "quark/int4_group": (run_quark, "int4_group", lambda t: quark_int4(t, True), AWQ_CUT),
    "quark/uint4_group": (run_quark, "uint4_group", lambda t: quark_int4(t, False), AWQ_CUT),
    "quark/mxfp4": (run_quark, "mxfp4", quark_mxfp4, {}),
    "quark/mxfp4_fp8": (run_quark, "mxfp4_fp8", quark_mxfp4, {}),
}


def cut(t, axis, per):
    return t if t.ndim == 0 or t.shape[axis] == 1 else t.narrow(axis, 0, ROWS // per).contiguous()


def make(case):
    run, config, meaning, axes = CASES[case]
    out = os.path.join(HERE, "cases", case)
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        y = run(config, folder)
        t = {k[len(LAYER) + 1:]: v for k, v in st.load_file(folder + "/model.safetensors").items() if k.startswith(LAYER)}
        written = json.load(open(folder + "/config.json"))
    small = {f"{LAYER}.{k}": v if k == "pre_quant_scale" else cut(v, *axes.get(k, (0, 1))) for k, v in t.items()}
    st.save_file(small, out + "/model.safetensors", {"format": "pt"})
    st.save_file({LAYER + ".dequant_rows": meaning(t)[INDEX].contiguous(), "X": x_of(),
                  "y": y.detach()[:, :ROWS].contiguous()}, out + "/expected.safetensors")
    json.dump({"quantization_config": written["quantization_config"]}, open(out + "/config.json", "w"), indent=1)
    name = "nvidia-modelopt" if run is run_modelopt else "amd-quark"
    note = {"checkpoint": "model.safetensors", "producer": name,
            "versions": {p: version(p) for p in (name, "torch", "transformers")},
            "dequant": {LAYER: {"shape": [ROWS, 256], "dtype": "float32", "rows": INDEX}},
            "outputs": {LAYER: {"x": "X", "y": "y", "dtype": "float32", "how": "the producer's fake quantization, float32"}}}
    json.dump(note, open(out + "/case.json", "w"), indent=1)
    print(case, {k: (str(v.dtype), list(v.shape)) for k, v in t.items()})


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
