"""tests/data/text/unigram.json and unigram.model: a small made vocabulary, tokenizers that differ in one component each, and the
ids of Hugging Face's tokenizers (made with tokenizers 0.23.3).   python make_unigram.py tests/data/text"""
import base64, json, random, struct, sys
import tokenizers
from tokenizers import Tokenizer

random.seed(7)
SP = "\u2581"
pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (SP, -2.0)]
for i, c in enumerate("abcdefghilmnoprstuy.,'0123é世界"): pieces.append((c, -4 - i / 8))
for i, w in enumerate("the he at th er in on an re ll ello is ice".split()): pieces.append((w, -5 - i / 4))
for i, w in enumerate("the hello a at on table is nice thin ca fé 世界 ".split()): pieces.append((SP + w, -6.5 - i / 4))
pieces += [(SP * 2, -9.25), ("aa", -5.5), ("aaa", -6.0), ("<user>", -3.0)]
bytes_ = [(f"<0x{i:02X}>", -12.0) for i in range(256)]


def charsmap(pairs):
    """The double-array trie of SentencePiece with texts behind it, built the slow way."""
    units, texts, at = {}, b"", {}
    for _, to in pairs: at.setdefault(to, len(texts)); texts += b"" if texts[at[to]:] else to.encode() + b"\0"
    keys = {k.encode(): at[v] for k, v in pairs}
    used = {0}

    def build(node, prefix):
        children = sorted({k[len(prefix)] for k in keys if k.startswith(prefix) and len(k) > len(prefix)})
        leaf = prefix in keys
        base = 1
        while any(base ^ c in used for c in children) or (leaf and base in used) or node ^ base >= 1 << 21: base += 1
        if leaf: used.add(base); units[base] = 1 << 31 | keys[prefix]
        for c in children: used.add(base ^ c)
        units[node] = units.get(node, 0) | (node ^ base) << 10 | leaf << 8
        for c in children:
            units[base ^ c] = c
            build(base ^ c, prefix + bytes([c]))

    build(0, b"")
    n = max(units) + 256
    blob = struct.pack(f"<{n}I", *[units.get(i, 0) for i in range(n)])
    return struct.pack("<I", len(blob)) + blob + texts


MAP = charsmap([("\t", " "), ("\n", " "), ("\u00a0", " "), ("\u3000", " "), ("①", "1"), ("ﬁ", "fi"), ("Ａ", "a"), ("e\u0301", "é"), ("\u200b", ""), ("½", "1/2"), ("İ", "i")])
precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(MAP).decode()}
strip = {"type": "Strip", "strip_left": False, "strip_right": True}
fold = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SP}
meta = lambda **k: {"type": "Metaspace", "replacement": SP, **k}
seq = lambda *n: {"type": "Sequence", "normalizers": list(n)}
end = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
       "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}
added = lambda special=True: [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special} for i, t in enumerate(("<pad>", "</s>", "<unk>"))]
user = {"id": len(pieces) - 1, "content": "<user>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def make(normalizer, pre, post=None, model=None, tokens=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens if tokens is not None else added(), "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": post, "decoder": None, "model": {"type": "Unigram", "unk_id": 2, "vocab": "$pieces", "byte_fallback": False, **(model or {})}}


bpe_vocab = ["<|startoftext|>", "<|endoftext|>"]
alphabet = [chr(i) for i in range(33, 127)] + ["Ã", "©", "ä", "¸", "ĸ"]
bpe_vocab += alphabet + [c + "</w>" for c in alphabet]
merges = [("t", "h"), ("th", "e</w>"), ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o</w>"), ("a", "t</w>"), ("i", "n"), ("1", "2</w>"), ("o", "n</w>")]
bpe_vocab += ["".join(m) for m in merges]
clip = {"version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, t in enumerate(bpe_vocab[:2])],
        "normalizer": seq({"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"}, "behavior": "Removed", "invert": True},
                                                                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
        "post_processor": {"type": "RobertaProcessing", "sep": ["<|endoftext|>", 1], "cls": ["<|startoftext|>", 0], "trim_offsets": False, "add_prefix_space": False}, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<|endoftext|>", "continuing_subword_prefix": "", "end_of_word_suffix": "</w>", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(bpe_vocab)}, "merges": [" ".join(m) for m in merges]}}
chars = json.loads(json.dumps(clip)); chars["pre_tokenizer"] = {"type": "WhitespaceSplit"}
bert = json.loads(json.dumps(clip)); bert["post_processor"] = {"type": "BertProcessing", "sep": ["<|endoftext|>", 1], "cls": ["<|startoftext|>", 0]}
t5 = make(seq(precompiled, strip, fold), meta(prepend_scheme="first"), end, tokens=added() + [user])
VARIANTS = {
    "t5": t5, "always": make(precompiled, meta(prepend_scheme="always")), "never": make(None, meta(prepend_scheme="never")), "old_prefix": make(None, {"type": "Metaspace", "replacement": SP, "add_prefix_space": True, "prepend_scheme": "always"}),
    "no_split": make(None, meta(prepend_scheme="always", split=False)), "words": make(None, {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, meta(prepend_scheme="always")]}),
    "words_first": make(None, {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, meta(prepend_scheme="first")]}),
    "no_pre": make(None, None), "nfkc": make({"type": "NFKC"}, meta(prepend_scheme="always")), "nfd": make({"type": "NFD"}, meta(prepend_scheme="always")), "nfkd": make({"type": "NFKD"}, meta(prepend_scheme="always")),
    "lower": make(seq({"type": "Lowercase"}, {"type": "NFC"}), meta(prepend_scheme="always")), "strip": make({"type": "Strip", "strip_left": True, "strip_right": True}, meta(prepend_scheme="always")),
    "prepend": make({"type": "Prepend", "prepend": SP}, None), "replace": make({"type": "Replace", "pattern": {"String": "ll"}, "content": "<0x"}, meta(prepend_scheme="always")),
    "bytes": make(None, meta(prepend_scheme="always"), model={"byte_fallback": True, "vocab": [list(p) for p in pieces + bytes_]}),
    "bytes_missing": make(None, meta(prepend_scheme="always"), model={"byte_fallback": True}),
    "clip": clip, "suffix_chars": chars, "bert": bert,
}
TEXTS = ["", " ", "a", "hello", "hello table", "  the   thin  ice ", "a\tb\n c", "x", "xyz qq", "aaaaa aaaa", "the</s>the", "</s> the", "<user>a <user> b", "café cafe\u0301 CAFÉ", "世界 世 x世", "①ﬁ½Ａ\u200bthe", "\u3000at\u00a0on", "it's nice, 12.3",
         "İstanbul ΣΑΣ", "<|endoftext|>the the<|startoftext|>", "hellohello ll", SP + "the", SP + SP, " " + SP + "a", "é" * 5, "👩‍🚀 ok", "\u0301a", "the\u0000the", "\r\nthe", "ᄀ\u1161", "\ufffd"]
for _ in range(14): TEXTS.append("".join(random.choice("the aloin s.,é世①\u0301x\t12") for _ in range(random.randint(5, 60))))

variants = []
for name, tokenizer in VARIANTS.items():
    full = json.loads(json.dumps(tokenizer))
    if full["model"]["vocab"] == "$pieces": full["model"]["vocab"] = [list(p) for p in pieces]
    t = Tokenizer.from_str(json.dumps(full))
    variants.append({"name": name, "tokenizer": tokenizer, "ids": [t.encode(x).ids if "\0" not in x else None for x in TEXTS]})
keep = [i for i, x in enumerate(TEXTS) if "\0" not in x]
for v in variants: v["ids"] = [v["ids"][i] for i in keep]
out = sys.argv[1]
data = {"made_by": {"script": "tests/unit/text/make_unigram.py", "tokenizers": tokenizers.__version__}, "vocab": [list(p) for p in pieces], "texts": [TEXTS[i] for i in keep], "variants": variants}
text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace('"$pieces"', '"$pieces"')
open(f"{out}/unigram.json", "w", encoding="utf-8").write(text.replace('{"name":', '\n{"name":') + "\n")


def varint(n):
    o = b""
    while n > 127: o += bytes([n & 127 | 128]); n >>= 7
    return o + bytes([n])


def message(field, d): return varint(field << 3 | 2) + varint(len(d)) + d
def number(field, n): return varint(field << 3) + varint(n)


model = b""
for text, score in pieces:
    p = message(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
    p += number(3, {"<pad>": 3, "</s>": 3, "<unk>": 2, "<user>": 4}.get(text, 1))
    model += message(1, p)
model += message(2, number(3, 1) + number(40, 2) + number(42, 1)) + message(3, message(1, b"made") + message(2, MAP)) + message(4, b"")
open(f"{out}/unigram.model", "wb").write(model)
