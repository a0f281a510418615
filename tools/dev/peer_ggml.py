"""peer_ggml.py -- ggml's matrix product on this CPU through its C interface, for peer.py. The library is what the package
libggml-python carries: built for this processor where a compiler was at hand when tools/dev/peer installed it."""
import ctypes
import importlib.metadata
import importlib.util
import math
import os

import numpy as np

TYPES = dict(bf16=30, q4_0=2, q4_1=3, q5_0=6, q5_1=7, q8_0=8, q2_k=10, q3_k=11, q4_k=12, q5_k=13, q6_k=14, iq4_nl=20, iq4_xs=23,
             mxfp4_gguf=39)
F32 = 0
POINTER, INT, INT64, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", SIZE), ("mem_buffer", POINTER), ("no_alloc", ctypes.c_bool)]


class TypeTraits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("block", INT64), ("interleave", INT64), ("bytes", SIZE), ("quantized", ctypes.c_bool),
                ("to_float", ctypes.CFUNCTYPE(None, POINTER, POINTER, INT64)), ("from_float", POINTER)]


def declare(library, result, name, *arguments):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


class Ggml:
    def __init__(self):
        spec = importlib.util.find_spec("libggml")
        if spec is None:
            raise RuntimeError("the package libggml-python is not installed")
        folder = next(p for p in (os.path.join(os.path.dirname(spec.origin), d) for d in ("lib64", "lib")) if os.path.isdir(p))
        base, cpu = (ctypes.CDLL(os.path.join(folder, f"libggml-{x}.so"), mode=ctypes.RTLD_GLOBAL) for x in ("base", "cpu"))
        self.init = declare(base, POINTER, "ggml_init", InitParams)
        self.free = declare(base, None, "ggml_free", POINTER)
        self.matrix = declare(base, POINTER, "ggml_new_tensor_2d", POINTER, INT, INT64, INT64)
        self.mul_mat = declare(base, POINTER, "ggml_mul_mat", POINTER, POINTER, POINTER)
        self.graph = declare(base, POINTER, "ggml_new_graph", POINTER)
        self.expand = declare(base, None, "ggml_build_forward_expand", POINTER, POINTER)
        self.quantize = declare(base, SIZE, "ggml_quantize_chunk", INT, POINTER, POINTER, INT64, INT64, INT64, POINTER)
        self.row_size = declare(base, SIZE, "ggml_row_size", INT, INT64)
        self.traits = declare(base, ctypes.POINTER(TypeTraits), "ggml_get_type_traits", INT)
        self.place = declare(base, POINTER, "ggml_backend_alloc_ctx_tensors_from_buft", POINTER, POINTER)
        self.drop = declare(base, None, "ggml_backend_buffer_free", POINTER)
        self.put = declare(base, None, "ggml_backend_tensor_set", POINTER, POINTER, SIZE, SIZE)
        self.get = declare(base, None, "ggml_backend_tensor_get", POINTER, POINTER, SIZE, SIZE)
        self.supports = declare(base, ctypes.c_bool, "ggml_backend_supports_op", POINTER, POINTER)
        self.compute = declare(base, INT, "ggml_backend_graph_compute", POINTER, POINTER)
        self.threads = declare(cpu, None, "ggml_backend_cpu_set_n_threads", POINTER, INT)
        self.quiet = ctypes.CFUNCTYPE(None, INT, ctypes.c_char_p, POINTER)(lambda *message: None)
        declare(base, None, "ggml_log_set", POINTER, POINTER)(self.quiet, None)
        self.backend = declare(cpu, POINTER, "ggml_backend_cpu_init")()
        self.plain = declare(base, POINTER, "ggml_backend_get_default_buffer_type", POINTER)(self.backend)
        self.extra = self.extra_buffers(base, cpu)
        self.about = f"ggml {importlib.metadata.version('libggml-python')} ({self.features(cpu)})"

    def extra_buffers(self, base, cpu):
        """Where weights are turned to another order when they are set."""
        register = declare(cpu, POINTER, "ggml_backend_cpu_reg")()
        device = declare(base, POINTER, "ggml_backend_get_device", POINTER)(self.backend)
        at = declare(base, POINTER, "ggml_backend_reg_get_proc_address", POINTER, ctypes.c_char_p)(
            register, b"ggml_backend_dev_get_extra_bufts")
        found = ctypes.CFUNCTYPE(ctypes.POINTER(POINTER), POINTER)(at)(device) if at else []
        types = []
        while found and found[len(types)]:
            types.append(found[len(types)])
        return types

    @staticmethod
    def features(cpu):
        """The last of its levels, and whether the faster plain product is in it."""
        has = lambda name: getattr(cpu, f"ggml_cpu_has_{name}")()
        levels = [n for n in ("avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8") if has(n)] or ["no avx2"]
        return levels[-1] + (", llamafile" if has("llamafile") else "")

    def context(self):
        return self.init(InitParams(1 << 20, None, True))


class Product:
    """y[m, n] = x[m, k] W[n, k]^T, x and y in F32; W where ggml is fastest with it."""

    def __init__(self, ggml, m, n, k, name):
        self.ggml, self.type, self.shape = ggml, TYPES[name], (m, n, k)
        self.contexts, self.buffers = [], []
        rng = np.random.default_rng(1)
        few = math.gcd(n, 64)  # rows that repeat
        w, x = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((few, k), (m, k)))
        codes = np.zeros((few, ggml.row_size(self.type, k)), np.uint8)
        ggml.quantize(self.type, w.ctypes.data, codes.ctypes.data, 0, few, k, None)
        codes = np.tile(codes, (n // few, 1))
        for kind in (*ggml.extra, ggml.plain):
            weights, rest = ggml.context(), ggml.context()
            self.contexts += [weights, rest]
            a, b = ggml.matrix(weights, self.type, k, n), ggml.matrix(rest, F32, k, m)
            buffer = ggml.place(weights, kind)
            if not buffer:
                continue
            self.buffers.append(buffer)
            self.y = ggml.mul_mat(rest, a, b)
            self.graph = ggml.graph(rest)
            ggml.expand(self.graph, self.y)
            self.buffers.append(ggml.place(rest, ggml.plain))
            if kind == ggml.plain or ggml.supports(ggml.backend, self.y):
                break
        self.peer = ggml.about + (" repacked" if kind != ggml.plain else "")
        ggml.put(a, codes.ctypes.data, 0, codes.nbytes)
        ggml.put(b, x.ctypes.data, 0, x.nbytes)
        self.check(x, codes)

    def __call__(self):
        if self.ggml.compute(self.ggml.backend, self.graph) != 0:
            raise RuntimeError("ggml cannot compute its product")

    def check(self, x, codes):
        """The product is that of these weights: at most the noise of activations in eight bits."""
        m, n, k = self.shape
        few = min(n, 64)
        w, y = np.empty((few, k), np.float32), np.empty((m, n), np.float32)
        self.ggml.traits(self.type).contents.to_float(codes.ctypes.data, w.ctypes.data, few * k)
        self()
        self.ggml.get(self.y, y.ctypes.data, 0, y.nbytes)
        want = x.astype(np.float64) @ w.T.astype(np.float64)
        error = np.linalg.norm(y[:, :few] - want) / np.linalg.norm(want)
        if not error < 0.02:
            raise RuntimeError(f"ggml's product is off by {error:.3f}")

    def close(self):
        for buffer in self.buffers:
            self.ggml.drop(buffer)
        for context in self.contexts:
            self.ggml.free(context)


class Peer:
    """The library, loaded with the first order, and the product of the last one."""

    def __init__(self):
        self.ggml, self.last = None, None

    def __call__(self, threads, m, n, k, name):
        if self.ggml is None:
            self.ggml = Ggml()
        if self.last is not None:
            self.last.close()
        self.last = None
        self.ggml.threads(self.ggml.backend, threads)
        self.last = Product(self.ggml, int(m), int(n), int(k), name)
        return self.last
