#!/usr/bin/env python3
"""Layers as SD.Next's quantizer writes them -> cases/sdnq/*: its own tensors and metadata, the values that it gives for them and the
products of its layers. Made with sdnq 0.2.8: pip install sdnq torch safetensors."""
import json, os

os.environ["SDNQ_USE_TORCH_COMPILE"] = "0"
os.environ["SDNQ_USE_OPENVINO_MM"] = "0"
import sdnq
import torch
from safetensors.torch import save_file
from sdnq.common import sdnq_version
from sdnq.quantizer import sdnq_post_load_quant
from sdnq.utils import get_sdnq_params

HERE = os.path.dirname(os.path.abspath(__file__))


class Net(torch.nn.Module):
    def __init__(self, layers, dtype):
        super().__init__()
        for i, (name, (n, k)) in enumerate(layers.items()):
            g = torch.Generator().manual_seed(100 + i)
            layer = torch.nn.Linear(k, n, bias=i == 0)
            layer.weight.data = (torch.randn(n, k, generator=g) * 0.05).to(dtype)
            if i == 0:
                layer.bias.data = torch.randn(n, generator=g).to(dtype)
            setattr(self, name, layer)


def write(case, layers, rows=4, dtype=torch.float32, x_rows=5, **options):
    folder = os.path.join(HERE, "cases", "sdnq", case)
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(7)
    net = sdnq_post_load_quant(Net(layers, dtype), add_skip_keys=False, minimum_allowed_numel=1, torch_dtype=dtype, **options)
    save_file({k: v.contiguous() for k, v in net.state_dict().items()}, os.path.join(folder, "model.safetensors"))
    expected, told = {}, {"checkpoint": "model.safetensors", "producer": "sdnq",
                          "versions": {"sdnq": sdnq_version, "torch": torch.__version__}, "dequant": {}, "outputs": {}}
    word = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[dtype]
    for name, (n, k) in layers.items():
        layer = getattr(net, name)
        if not hasattr(layer, "sdnq_dequantizer"):
            continue
        d = layer.sdnq_dequantizer
        w = d(**get_sdnq_params(layer), skip_quantized_matmul=d.use_quantized_matmul, non_svd=True, non_hadamard=True).reshape(n, k)
        at = sorted({i * (n - 1) // (rows - 1) for i in range(rows)})
        expected[f"{name}.dequant_rows"] = w[at].contiguous()
        told["dequant"][name] = {"shape": [n, k], "dtype": word, "rows": at}
        if dtype == torch.float32:
            x = torch.randn(x_rows, k, generator=torch.Generator().manual_seed(n + k))
            bias, layer.bias = layer.bias, None
            expected[f"{name}.x"], expected[f"{name}.y"] = x, layer(x).detach().contiguous()
            layer.bias = bias
            told["outputs"][name] = {"x": f"{name}.x", "y": f"{name}.y", "dtype": word, "how": "the layer's own forward without bias"}
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "case.json"), "w") as f:
        json.dump(told, f, indent=1)
        f.write("\n")
    config = net.quantization_config.to_dict()
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"quantization_config": {k: config[k] for k in sorted(config)}}, f, indent=1, default=lambda v: sorted(v) if isinstance(v, set) else str(v))
        f.write("\n")


write("uint4_svd", {"wide": (16, 256), "odd": (12, 192), "plain": (8, 64)}, weights_dtype="uint4", use_svd=True, svd_rank=8,
      modules_to_not_convert=["plain"])
write("uint4_bf16", {"blocks_0_q": (16, 256), "blocks_1_q": (16, 128)}, dtype=torch.bfloat16, weights_dtype="uint4", use_svd=True,
      svd_rank=4, dequantize_fp32=False)
names = ["uint2", "uint4", "int2", "int3", "int4", "int5", "int6", "int7", "int8", "uint3", "uint5", "uint6", "uint7", "uint8", "float8_e4m3fn"]
write("types", {f"l_{t}": (8, 256) for t in names}, weights_dtype="uint2", modules_dtype_dict={t: [f"l_{t}"] for t in names[1:]},
      modules_quant_config={"l_int*": {"group_size": 128}, "l_float*": {"group_size": 128}})
floats = ["float2_e1m0fn", "float3_e1m1fn", "float4_e2m1fn", "float4_e3m0fn", "float5_e2m2fn", "float6_e3m2fn", "float7_e5m1fn", "float8_e3m4fn",
          "float8_e4m3fn_sdnq", "float2_e1m1fnu", "float4_e1m3fnu", "float4_e4m0fnu", "float5_e5m0fnu", "float6_e2m4fnu", "float7_e4m3fnu",
          "float8_e2m6fnu", "float8_e5m3fnu"]
write("floats", {f"l_{t}": (8, 128) for t in floats}, weights_dtype=floats[0], modules_dtype_dict={t: [f"l_{t}"] for t in floats[1:]},
      modules_quant_config={"l_float3*": {"group_size": 32}, "l_float8*": {"group_size": 64}})
write("rows", {"uint8_rows": (16, 128), "uint6_rows": (16, 128), "fp8_rows": (16, 128), "int8_rows": (16, 128), "uint5_half": (16, 128)},
      weights_dtype="uint8", group_size=-1,
      modules_dtype_dict={"uint6": ["uint6_rows"], "float8_e4m3fn": ["fp8_rows"], "int8": ["int8_rows"], "minimum_uint5bit": ["uint5_half"]},
      modules_quant_config={"uint5_half.weight": {"group_size": 64, "weights_dtype": "uint4"}})
write("matmul", {"int8_codes": (32, 64), "int8_svd": (48, 64), "int8_square": (32, 32), "int6_packed": (32, 64), "spared": (32, 64)},
      x_rows=64, weights_dtype="int8", use_quantized_matmul=True, modules_dtype_dict={"int6": ["int6_packed"]},
      modules_to_not_use_matmul=["spared"], modules_quant_config={"int8_svd": {"use_svd": True, "svd_rank": 8}})
write("matmul_fp8", {"fp8_codes": (32, 64)}, x_rows=64, weights_dtype="float8_e4m3fn", use_quantized_matmul=True)
write("hadamard", {"run256": (16, 512), "run64": (16, 64)}, weights_dtype="uint4", use_hadamard=True, use_svd=True, svd_rank=4)
write("matmul_uint8", {"uint8_codes": (32, 64), "int8_codes": (32, 64), "uint7_packed": (32, 64), "uint4_rows": (48, 64), "int5_rows": (32, 64)},
      x_rows=32, weights_dtype="uint8", use_quantized_matmul=True, group_size=-1, quantized_matmul_dtype="uint8",
      modules_dtype_dict={"INT8": ["int8_codes"], "UINT7": ["uint7_packed"], "Minimum_4Bits": ["none"], "uint4": ["uint4_rows"],
                          "int5": ["int5_rows"]})
write("float8_e5m2", {"groups": (16, 256), "rows": (16, 96)}, weights_dtype="float8_e5m2",
      modules_quant_config={"groups": {"group_size": 128}, "rows": {"group_size": -1}})
write("matmul_e5m2", {"codes": (32, 64)}, x_rows=32, weights_dtype="float8_e5m2", use_quantized_matmul=True)
few = {"x_rows": 5, "use_quantized_matmul": True}
write("matmul_few", {"int8_codes": (32, 64), "int8_svd": (48, 64), "int6_packed": (32, 64)}, weights_dtype="int8",
      modules_dtype_dict={"int6": ["int6_packed"]}, modules_quant_config={"int8_svd": {"use_svd": True, "svd_rank": 8}}, **few)
write("matmul_few31", {"int8_codes": (32, 64)}, weights_dtype="int8", x_rows=31, use_quantized_matmul=True)
write("matmul_few_uint8", {"uint8_codes": (32, 64), "uint4_rows": (48, 64)}, weights_dtype="uint8", group_size=-1,
      quantized_matmul_dtype="uint8", modules_dtype_dict={"uint4": ["uint4_rows"]}, **few)
write("matmul_few_fp8", {"fp8_codes": (32, 64)}, weights_dtype="float8_e4m3fn", **few)
packed = ["float6_e3m2fn", "float7_e3m3fn", "float7_e4m2fn", "float5_e2m2fn", "float4_e2m1fn", "float3_e1m1fn", "float6_e2m3fn", "float5_e1m3fn"]
as_packed = {"weights_dtype": packed[0], "group_size": -1, "use_quantized_matmul": True, "modules_dtype_dict": {t: [f"l_{t}"] for t in packed[1:]}}
write("matmul_floats", {f"l_{t}": (32, 64) for t in packed}, x_rows=32, **as_packed)
write("matmul_floats_few", {f"l_{t}": (32, 64) for t in packed[:5]}, x_rows=5, **as_packed)
write("matmul_floats_own", {"six": (32, 128), "seven": (32, 128)}, x_rows=40, weights_dtype="float6_e3m2fn", use_quantized_matmul=True,
      modules_dtype_dict={"float7_e3m3fn": ["seven"]})
