#!/usr/bin/env python3
"""The shipped model on the CPU and on the card, one row a configuration: PSNR between the two pictures, and whether two runs on
the card give the same bytes. Usage: parity_card.py OMNIQ MODEL [LEAST_DB]. Exit code 1 below LEAST_DB (40) or on a difference."""
import concurrent.futures, math, os, struct, subprocess, sys, tempfile, zlib

OMNIQ, MODEL = sys.argv[1:3]
LEAST = float(sys.argv[3]) if len(sys.argv) > 3 else 40.0
CONFIGURATIONS = {"f32": ["--dtype", "fp32"], "bf16": []}
for q in ("fp8", "int8", "mxfp8", "mxfp4", "bitsandbytes", "gguf"):
    CONFIGURATIONS[q] = ["--quantization", q]
CONFIGURATIONS["fp8 block"] = ["--quantization", '{"method":"fp8","weight_strategy":"block"}']
for a in ("fp8", "mxfp8", "mxfp4"):
    CONFIGURATIONS["attention " + a] = ["--attention-quantization", a]
CONFIGURATIONS["fp8, attention fp8"] = ["--quantization", "fp8", "--attention-quantization", "fp8"]


def pixels(path):
    data, at, raw, width = open(path, "rb").read(), 8, b"", 0
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + n]
        if kind == b"IHDR":
            width = struct.unpack(">I", body[:4])[0]
        if kind == b"IDAT":
            raw += body
        at += 12 + n
    raw, stride, rows = zlib.decompress(raw), 3 * width, []
    before = bytearray(stride)
    for r in range(len(raw) // (stride + 1)):
        kind, row = raw[r * (stride + 1)], bytearray(raw[r * (stride + 1) + 1 : (r + 1) * (stride + 1)])
        for i in range(stride):
            a, b, c = (row[i - 3] if i >= 3 else 0), before[i], (before[i - 3] if i >= 3 else 0)
            p = a + b - c
            paeth = min((a, b, c), key=lambda v: abs(p - v))
            row[i] = row[i] + (0, a, b, (a + b) // 2, paeth)[kind] & 255
        rows.append(row)
        before = row
    return b"".join(rows)


def generate(device, flags, path):
    command = [OMNIQ, "generate", "-m", MODEL, "-p", "a large red ball to the left of a small blue star on a cream background",
               "--seed", "7", "--device", device, "-o", path, *flags]
    run = subprocess.run(command, capture_output=True, text=True)
    return None if run.returncode == 0 else (run.stderr.strip().splitlines() or ["failed"])[-1]


def row(item):
    name, flags = item
    with tempfile.TemporaryDirectory() as d:
        paths = [os.path.join(d, n + ".png") for n in ("cpu", "one", "two")]
        for device, path in zip(("cpu", "cuda", "cuda"), paths):
            why = generate(device, flags, path)
            if why:
                return name, None, f"{device}: {why}"
        cpu, one, two = map(pixels, paths)
        error = sum((x - y) ** 2 for x, y in zip(cpu, one)) / len(cpu)
        return name, (99.0 if error == 0 else 10 * math.log10(255**2 / error)), one == two


bad = False
with concurrent.futures.ThreadPoolExecutor(5) as pool:
    for name, db, same in pool.map(row, CONFIGURATIONS.items()):
        bad = bad or db is None or db < LEAST or not same
        print(f"{name:22s} {same}" if db is None else f"{name:22s} {db:6.2f} dB  {'equal' if same else 'DIFFERS'} on repeat", flush=True)
sys.exit(bad)
