"""Real tokenizers for test_tokenizer.c, which are not part of omniq: a folder for OMNIQ_TOKENIZERS.

    python make_tokenizers.py OUT QWEN3.json T5.json CLIP_MERGES.txt

QWEN3.json, T5.json: the published tokenizer.json files. CLIP_MERGES.txt: CLIP's published list (bpe_simple_vocab_16e6, unpacked).
Writes qwen3-tokenizer.json, t5-tokenizer.json, spiece.model (a SentencePiece protobuf of the same pieces, T5's 32000) and
clip/{vocab.json,merges.txt}. The protobuf is written by hand: no other package is needed.
"""
import base64, json, os, shutil, struct, sys


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128]); n >>= 7
    return out + bytes([n])


def number(field, n): return varint(field << 3) + varint(n)
def message(field, data): return varint(field << 3 | 2) + varint(len(data)) + data


def spiece(tokenizer):
    out = b""
    kinds = {"<pad>": 3, "</s>": 3, "<unk>": 2}
    for text, score in tokenizer["model"]["vocab"]:
        if text.startswith("<extra_id_"): continue
        piece = message(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
        if text in kinds: piece += number(3, kinds[text])
        out += message(1, piece)
    out += message(2, number(3, 1) + number(40, 2) + number(42, 1) + number(43, 0))
    steps = tokenizer["normalizer"]
    steps = steps.get("normalizers", [steps])
    charsmap = next(base64.b64decode(s["precompiled_charsmap"]) for s in steps if s["type"] == "Precompiled")
    return out + message(3, message(1, b"nmt_nfkc") + message(2, charsmap) + number(3, 1) + number(4, 1) + number(5, 1))


def clip(merges, out):
    merges = merges.split("\n")[1:48895]
    b = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)); c = b[:]; n = 0
    for i in range(256):
        if i not in b: b.append(i); c.append(256 + n); n += 1
    v = [chr(x) for x in c]; v += [x + "</w>" for x in v] + ["".join(m.split()) for m in merges] + ["<|startoftext|>", "<|endoftext|>"]
    json.dump({t: i for i, t in enumerate(v)}, open(f"{out}/vocab.json", "w"), ensure_ascii=False)
    open(f"{out}/merges.txt", "w", encoding="utf-8").write("#version: 0.2\n" + "\n".join(merges) + "\n")


out, qwen3, t5, merges = sys.argv[1:]
os.makedirs(f"{out}/clip", exist_ok=True)
for source, name in ((qwen3, "qwen3"), (t5, "t5")):
    if os.path.abspath(source) != os.path.abspath(f"{out}/{name}-tokenizer.json"): shutil.copyfile(source, f"{out}/{name}-tokenizer.json")
open(f"{out}/spiece.model", "wb").write(spiece(json.load(open(t5, encoding="utf-8"))))
clip(open(merges, encoding="utf-8").read(), f"{out}/clip")
