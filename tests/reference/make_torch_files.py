#!/usr/bin/env python3
"""Good and hostile files of torch.save -> tests/data/torch. Needs torch; `good.bin` and its kind are what torch
itself writes, the hostile ones are put together byte by byte. Usage: make_torch_files.py"""
import collections, io, os, pickle, struct, zipfile

import torch

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "torch")


def numbers(n, dtype=torch.float32):
    return torch.arange(n, dtype=torch.float32).to(dtype)


def save(name, value, **how):
    torch.save(value, os.path.join(OUT, name), **how)


def good():
    kinds = collections.OrderedDict()
    for d in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
              "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"):
        kinds["k." + d] = numbers(4, getattr(torch, d)) if d != "bool" else numbers(4) > 1
    kinds["k.e8m0"] = torch.tensor([0, 127, 128, 255], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    save("kinds.bin", kinds)
    whole = numbers(24).reshape(4, 6)
    views = {"whole": whole, "transposed": whole.t(), "rows": whole[1:3], "columns": whole[:, 2:4], "stepped": whole[::2, ::3],
             "cube": whole.reshape(2, 2, 6).permute(2, 0, 1), "one": whole[2, 3], "none": whole[:0],
             "parameter": torch.nn.Parameter(whole[0].clone())}
    save("views.bin", views)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with torch.no_grad():
        module[0].weight.copy_(numbers(6).reshape(2, 3))
        module[0].bias.copy_(numbers(2))
    save("module.bin", module.state_dict())  # carries _metadata
    save("nested.bin", {"state_dict": {"a": numbers(2)}, "global_step": 7})
    save("protocol4.bin", {"a": numbers(3), "b": numbers(2, torch.bfloat16)}, pickle_protocol=4)


# ---- by hand -----------------------------------------------------------------------------------------------


def text(s):
    return b"X" + struct.pack("<I", len(s.encode())) + s.encode()


def number(x):
    return b"J" + struct.pack("<i", x)


def tuple_of(*items):
    return b"(" + b"".join(items) + b"t"


def storage(key="0", n=4, cls="torch\nFloatStorage"):
    return tuple_of(text("storage"), b"c" + cls.encode() + b"\n", text(key), text("cpu"), number(n)) + b"Q"


def tensor(size=(4,), stride=(1,), offset=0, where=None):
    return (b"ctorch._utils\n_rebuild_tensor_v2\n" +
            tuple_of(where or storage(), number(offset), tuple_of(*map(number, size)), tuple_of(*map(number, stride)),
                     b"\x89", b"ccollections\nOrderedDict\n)R") + b"R")


def entry(name="a", value=None):
    return text(name) + (value if value is not None else tensor())


def pickled(*entries):
    return b"\x80\x02}(" + b"".join(entries) + b"u."


def archive(name, data_pkl, storages=None, order=b"little", method=zipfile.ZIP_STORED, zip64=False, more=()):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as z:
        put = [("f/data.pkl", data_pkl)] + [("f/data/" + k, v) for k, v in
                                            (storages or {"0": numbers(4).numpy().tobytes()}).items()]
        put += ([("f/byteorder", order)] if order else []) + list(more)
        for path, content in put:
            info = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            with z.open(info, "w", force_zip64=zip64) as f:
                f.write(content)
    data = buffer.getvalue()
    open(os.path.join(OUT, name), "wb").write(data)
    return data


def wrapper(state, cls="torchao.quantization\nInt8Tensor"):
    made = (b"ctorch._utils\n_rebuild_wrapper_subclass\n" + b"c" + cls.encode() + b"\n" +
            tuple_of(b"c" + cls.encode() + b"\n", b"ctorch\nbfloat16\n", tuple_of(number(2), number(2)),
                     tuple_of(number(2), number(1)), number(0)) + b"}(" + state + b"u")
    return b"ctorch._tensor\n_rebuild_from_type_v2\n(" + made + b"tR"


def zip64_everything(data):
    """The same archive with all numbers of its directory in zip64 fields, as beyond 4 GiB."""
    end = data.rindex(b"PK\5\6")
    n, size, at = struct.unpack("<HII", data[end + 10:end + 20])
    old, new = data[at:at + size], b""
    while old:
        name_n, extra_n, comment_n = struct.unpack("<HHH", old[28:34])
        head, name = bytearray(old[:46]), old[46:46 + name_n]
        packed, plain = struct.unpack("<II", head[20:28])
        offset = struct.unpack("<I", head[42:46])[0]
        head[20:28], head[42:46] = b"\xff" * 8, b"\xff" * 4
        extra = struct.pack("<HHQQQ", 1, 24, plain, packed, offset)
        head[30:34] = struct.pack("<HH", len(extra), 0)
        new += bytes(head) + name + extra
        old = old[46 + name_n + extra_n + comment_n:]
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, n, n, len(new), at)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at + len(new), 1)
    tail = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 0)
    return data[:at] + new + end64 + locator + tail


def hostile():
    fine = archive("hand.bin", pickled(entry()))
    open(os.path.join(OUT, "zip64.bin"), "wb").write(zip64_everything(fine))
    archive("zip64_local.bin", pickled(entry()), zip64=True)
    archive("wrapped.bin", pickled(entry("m.weight", wrapper(text("qdata") + tensor((2, 2), (2, 1)) + text("dtype") +
                                                             b"ctorch\nbfloat16\n" + text("block") + b"](K\1K\2e"))))
    archive("h_system.bin", b"\x80\x02cos\nsystem\n" + text("true") + b"\x85R.")
    archive("h_eval.bin", b"\x80\x04" + b"\x8c\x08builtins\x8c\x04eval\x93" + text("1") + b"\x85R.")
    archive("h_getattr.bin", pickled(entry("a", b"ctorchao\ngetattr\n)R")))
    archive("h_torch_load.bin", pickled(entry("a", b"ctorch.serialization\nload\n)R")))
    archive("h_opcode_inst.bin", b"\x80\x02(ios\nsystem\n.")
    archive("h_opcode_ext.bin", b"\x80\x02\x82\x01.")
    archive("h_memo_unset.bin", b"\x80\x02h\x05.")
    archive("h_memo_large.bin", b"\x80\x02}r" + struct.pack("<I", 0x7fffffff) + b".")
    archive("h_no_stop.bin", b"\x80\x02}")
    archive("h_after_stop.bin", pickled(entry()) + b"}.")
    archive("h_text_long.bin", b"\x80\x02X\xff\xff\xff\xff.")
    archive("h_text_utf8.bin", b"\x80\x02}(" + b"X\x02\0\0\0\xff\xfe" + tensor() + b"u.")
    archive("h_append_self.bin", pickled(entry("m.weight", wrapper(text("x") + b"]q\1h\1a"))))
    archive("h_deep.bin", pickled(entry("m.weight", wrapper(text("x") + b"]" * 40 + b"a" * 39))))
    laugh = b"]q\0"
    for i in range(10):
        laugh += b"]q" + bytes([i + 1]) + b"(" + (b"h" + bytes([i])) * 16 + b"e"
    archive("h_laughs.bin", pickled(entry("m.weight", wrapper(text("x") + b"(" + laugh + b"t"))))
    archive("h_beyond.bin", pickled(entry("a", tensor((5,)))))
    archive("h_offset.bin", pickled(entry("a", tensor((4,), (1,), 1))))
    archive("h_stride_negative.bin", pickled(entry("a", tensor((4,), (-1,)))))
    archive("h_stride_zero.bin", pickled(entry("a", tensor((4, 100000), (1, 0)))))
    archive("h_stride_overlap.bin", pickled(entry("a", tensor((2, 2), (1, 1)))))
    archive("h_shape_overflow.bin", pickled(entry("a", tensor((2147483647, 2147483647, 2147483647), (1, 1, 1)))))
    archive("h_size_real.bin", pickled(entry("a", tensor().replace(number(4) + b"t" + b"(", b"G" + struct.pack(">d", 4.0) + b"t("))))
    archive("h_dims.bin", pickled(entry("a", tensor((1,) * 9, (1,) * 9))))
    archive("h_storage_missing.bin", pickled(entry("a", tensor(where=storage("7")))))
    archive("h_storage_path.bin", pickled(entry("a", tensor(where=storage("../data.pkl")))))
    archive("h_storage_size.bin", pickled(entry("a", tensor(where=storage(n=3)))))
    archive("h_storage_huge.bin", pickled(entry("a", tensor(where=storage(n=-4)))))
    archive("h_storage_class.bin", pickled(entry("a", tensor(where=storage(cls="torch\nint4")))))
    archive("h_no_tensor.bin", pickled(entry("a", number(3))))
    archive("h_name_number.bin", pickled(number(3) + tensor()))
    archive("h_no_dict.bin", b"\x80\x02](" + tensor() + b"e.")
    archive("h_big_endian.bin", pickled(entry()), order=b"big")
    archive("h_compressed.bin", pickled(entry()), method=zipfile.ZIP_DEFLATED)
    archive("h_two_pickles.bin", pickled(entry()), more=[("g/data.pkl", pickled(entry()))])
    archive("h_twice.bin", pickled(entry(), entry()))
    archive("h_copies.bin", pickled(*[entry(f"t{i}", tensor((64, 64), (1, 64), where=storage(n=4096))) for i in range(4)]),
            {"0": bytes(16384)})
    no_pickle = io.BytesIO()
    with zipfile.ZipFile(no_pickle, "w") as z:
        z.writestr(zipfile.ZipInfo("readme.txt"), "no weights")
    open(os.path.join(OUT, "h_no_pickle.bin"), "wb").write(no_pickle.getvalue())
    at = fine.rindex(b"PK\1\2")  # the last member of the directory: let it point at the first entry
    second = fine.index(b"PK\1\2", fine.index(b"PK\1\2") + 4)
    moved = bytearray(fine)
    moved[second + 42:second + 46] = struct.pack("<I", 0)
    open(os.path.join(OUT, "h_zip_shared.bin"), "wb").write(moved)
    longer = bytearray(fine)
    for o in (20, 24):
        longer[second + o:second + o + 4] = struct.pack("<I", 30)
    open(os.path.join(OUT, "h_zip_overlap.bin"), "wb").write(longer)
    secret = bytearray(fine)
    secret[at + 8] |= 1
    open(os.path.join(OUT, "h_encrypted.bin"), "wb").write(secret)
    open(os.path.join(OUT, "h_bare_pickle.bin"), "wb").write(pickle.dumps({"a": 1}, protocol=2))


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    good()
    hostile()
    print(sum(os.path.getsize(os.path.join(OUT, f)) for f in os.listdir(OUT)), "bytes")
