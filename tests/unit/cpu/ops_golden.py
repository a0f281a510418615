"""Writes ops_golden.h: what torch gives for small inputs, for test_ops_ref.c. Run by hand: python3 ops_golden.py > ops_golden.h
(made with torch 2.15.0). Inputs follow the rule of `pattern`, which the test repeats in C; all are exact in bf16."""
import torch
import torch.nn.functional as F

torch.set_num_threads(1)


def pattern(n, seed):
    return torch.tensor([((i * 37 + seed * 11) % 101 - 50) / 32 for i in range(n)], dtype=torch.float64)


def emit(name, t):
    v = t.double().flatten().tolist()
    lines = [", ".join(f"{x:.9g}" for x in v[i:i + 8]) for i in range(0, len(v), 8)]
    print(f"static const double {name}[] = {{\n    " + ",\n    ".join(lines) + "};")


print("/* ops_golden.h -- written by ops_golden.py with torch %s; values in reading order. */" % torch.__version__.split("+")[0])
print("#ifndef OPS_GOLDEN_H\n#define OPS_GOLDEN_H\n")
x = pattern(24, 1).view(3, 8)
w, b = pattern(8, 2), pattern(8, 3)
emit("rms_8", F.rms_norm(x, (8,), w, 1e-5))
emit("rms_4", F.rms_norm(x.view(3, 2, 4), (4,), w[:4], 1e-5))
xb = x.to(torch.bfloat16)
r = (xb.float() * torch.rsqrt(xb.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)
emit("rms_early_bf16", r * w.to(torch.bfloat16))
emit("layer_8", F.layer_norm(x, (8,), w, b, 1e-6))
image = pattern(2 * 6 * 3 * 2, 4).view(2, 6, 3, 2)  # B C H W
gn = F.group_norm(image, 3, pattern(6, 5), pattern(6, 6), 1e-6)
emit("group_3", gn.permute(0, 2, 3, 1))
emit("group_3_silu", F.silu(gn).permute(0, 2, 3, 1))
q = pattern(2 * 2 * 6, 7).view(2, 2, 6)  # rows heads dim
ang = pattern(6, 8).view(2, 1, 3)
c, s = ang.cos(), ang.sin()
emit("rope_cos", c)
emit("rope_sin", s)
pairs = torch.view_as_complex(q.view(2, 2, 3, 2).contiguous()) * torch.complex(c, s)
emit("rope_interleaved", torch.view_as_real(pairs))
half = torch.cat([c, c], -1) * q + torch.cat([s, s], -1) * torch.cat([-q[..., 3:], q[..., :3]], -1)
emit("rope_half", half)
u = pattern(16, 9) * 3
emit("silu", F.silu(u))
emit("gelu_tanh", F.gelu(u, approximate="tanh"))
emit("gelu_erf", F.gelu(u))
emit("quick_gelu", u * torch.sigmoid(1.702 * u))
emit("tanh_", torch.tanh(u))
h = torch.bfloat16
emit("glu_silu_bf16", F.silu(pattern(16, 9).to(h)) * pattern(16, 10).to(h))
emit("gated_bf16", pattern(16, 1).to(h) + pattern(16, 2).to(h) * pattern(16, 3).to(h))
emit("modulated", pattern(16, 1).view(2, 8) * (1 + pattern(8, 2)) + pattern(8, 3))
emit("upsampled", F.interpolate(pattern(12, 4).view(1, 2, 2, 3), scale_factor=2).permute(0, 2, 3, 1))
conv = F.conv2d(F.pad(pattern(2 * 3 * 5 * 4, 1).view(2, 3, 5, 4), (0, 1, 0, 1)), pattern(4 * 3 * 9, 2).view(4, 3, 3, 3), pattern(4, 3), stride=2)
emit("conv_down", conv.permute(0, 2, 3, 1))
conv = F.conv2d(pattern(3 * 3 * 4, 5).view(1, 3, 3, 4), pattern(2 * 3 * 9, 6).view(2, 3, 3, 3), padding=1)
emit("conv_same", conv.permute(0, 2, 3, 1))
S, T, D = 3, 5, 8
q, k, v = pattern(S * 4 * D, 1).view(S, 4, D), pattern(T * 2 * D, 2).view(T, 2, D), pattern(T * 2 * D, 3).view(T, 2, D)
q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))


def attend(mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)[0].transpose(0, 1)


bias = pattern(4 * S * T, 4).view(1, 4, S, T)
emit("attention_bias", attend(bias))
causal = torch.ones(S, T, dtype=torch.bool).tril(T - S)
emit("attention_causal", attend(causal))
emit("attention_masked", attend(torch.tensor([True, False, True, True, False]).expand(S, T)))
print("\n#endif")
