"""The C interface of libomniq (omniq.h), function by function; nothing else. Python's side is __init__.py."""

import ctypes as c
import ctypes.util
import os
from pathlib import Path

VERSION = "0.1.0"  # of the interface that is declared here


class EnvParams(c.Structure):
    Log = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
    _fields_ = [
        ("size", c.c_size_t),
        ("allocate", c.c_void_p),
        ("release", c.c_void_p),
        ("alloc_user", c.c_void_p),
        ("log", Log),
        ("log_user", c.c_void_p),
        ("progress", c.c_void_p),  # a Progress.Call
        ("progress_user", c.c_void_p),
        ("n_threads", c.c_int),
    ]


class Progress(c.Structure):
    _fields_ = [("phase", c.c_char_p), ("done", c.c_int64), ("total", c.c_int64), ("elapsed_s", c.c_double)]


Progress.Call = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Progress))


class OptionInfo(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("aliases", c.c_char_p),
        ("type", c.c_int),
        ("min", c.c_double),
        ("max", c.c_double),
        ("choices", c.c_char_p),
        ("fallback", c.c_char_p),
        ("commands", c.c_char_p),
        ("group", c.c_char_p),
        ("value", c.c_char_p),
        ("help", c.c_char_p),
    ]


class Metrics(c.Structure):
    _fields_ = [
        (name, c.c_double)
        for name in ("mse", "rmse", "mae", "max_abs", "l2", "relative_l2", "cosine_similarity", "psnr_db")
    ]


_pointer, _text, _status = c.c_void_p, c.c_char_p, c.c_int

_functions = {  # name: (result, arguments)
    "oq_status_name": (_text, [_status]),
    "oq_version": (_text, []),
    "oq_env_new": (_status, [c.POINTER(EnvParams), c.POINTER(_pointer)]),
    "oq_env_free": (None, [_pointer]),
    "oq_env_error": (_text, [_pointer]),
    "oq_env_clear": (None, [_pointer]),
    "oq_env_cancel": (None, [_pointer]),
    "oq_option_find": (c.POINTER(OptionInfo), [_text, _text]),
    "oq_options_new": (_status, [_pointer, _text, c.POINTER(_pointer)]),
    "oq_options_free": (None, [_pointer]),
    "oq_options_set_json": (_status, [_pointer, _text]),
    "oq_options_add_argument": (_status, [_pointer, _text]),
    "oq_options_get": (_text, [_pointer, _text]),
    "oq_run": (_status, [_pointer, c.POINTER(_pointer)]),
    "oq_report_json": (_text, [_pointer]),
    "oq_report_text": (_text, [_pointer]),
    "oq_report_passed": (c.c_bool, [_pointer]),
    "oq_report_free": (None, [_pointer]),
    "oq_model_open": (_status, [_pointer, _pointer, c.POINTER(_pointer)]),
    "oq_model_close": (None, [_pointer]),
    "oq_model_plan": (_status, [_pointer, _pointer, c.POINTER(_pointer)]),
    "oq_model_makes_video": (c.c_bool, [_pointer]),
    "oq_generate": (_status, [_pointer, _pointer, _pointer, c.POINTER(_pointer)]),
    "oq_media_count": (c.c_int, [_pointer]),
    "oq_media_width": (c.c_int64, [_pointer]),
    "oq_media_height": (c.c_int64, [_pointer]),
    "oq_media_frames": (c.c_int64, [_pointer]),
    "oq_media_seed": (c.c_uint64, [_pointer, c.c_int]),
    "oq_media_pixels": (c.POINTER(c.c_uint8), [_pointer, c.c_int]),
    "oq_media_fps": (c.c_double, [_pointer]),
    "oq_media_save": (_status, [_pointer, _pointer, c.c_int, _text]),
    "oq_media_free": (None, [_pointer]),
    "oq_metrics_u8": (None, [_text, _text, c.c_size_t, c.POINTER(Metrics)]),
}


def _places():
    """Where libomniq may be: what the user says, beside this package, a source tree's build, the system's."""
    here = Path(__file__).resolve().parent
    if os.environ.get("OMNIQ_LIBRARY"):
        yield os.environ["OMNIQ_LIBRARY"]
        return
    for path in (here / "libomniq.so", here.parent.parent / "build" / "libomniq.so"):
        if path.exists():
            yield str(path)
    found = ctypes.util.find_library("omniq")
    if found:
        yield found


def load():
    for path in _places():
        library = c.CDLL(path)
        break
    else:
        raise ImportError(
            "libomniq.so is not found: 'make install' puts it where the system looks, OMNIQ_LIBRARY names another place"
        )
    for name, (result, arguments) in _functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    version = library.oq_version().decode()
    if version.split(".")[:2] != VERSION.split(".")[:2]:
        raise ImportError(f"libomniq at {path} has version {version}, this package is for {VERSION}")
    return library
