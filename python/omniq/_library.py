"""The C interface of libomniq (omniq.h), function by function; nothing else. Python's side is __init__.py."""

import ctypes as c
import ctypes.util
import os
import sys
from pathlib import Path

VERSION = "0.1.0"  # of the interface that is declared here


class Progress(c.Structure):
    _fields_ = [("phase", c.c_char_p), ("done", c.c_int64), ("total", c.c_int64), ("elapsed_s", c.c_double)]


class Preview(c.Structure):
    _fields_ = [("media", c.c_void_p), ("step", c.c_int), ("steps", c.c_int)]


LogCall = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
ProgressCall = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Progress))
PreviewCall = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Preview))
ChooseCall = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p, c.c_int64, c.c_int64)


class CustomMethod(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("choose", ChooseCall), ("user", c.c_void_p)]


class EnvParams(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("allocate", c.c_void_p),
        ("release", c.c_void_p),
        ("alloc_user", c.c_void_p),
        ("log", LogCall),
        ("log_user", c.c_void_p),
        ("progress", ProgressCall),
        ("progress_user", c.c_void_p),
        ("n_threads", c.c_int),
        ("preview", PreviewCall),
        ("preview_user", c.c_void_p),
    ]


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


METRICS = ("mse", "rmse", "mae", "max_abs", "l2", "relative_l2", "cosine_similarity", "psnr_db")


class Metrics(c.Structure):
    _fields_ = [(name, c.c_double) for name in METRICS]


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
    "oq_method_register": (_status, [_pointer, c.POINTER(CustomMethod)]),
    "oq_metrics_u8": (None, [_text, _text, c.c_size_t, c.POINTER(Metrics)]),
}


def _places():
    """Where libomniq may be: what the user says, beside this package, a source tree's build, the virtual environment's
    (make install PREFIX="$VIRTUAL_ENV"), the system's."""
    here = Path(__file__).resolve().parent
    if os.environ.get("OMNIQ_LIBRARY"):
        yield os.environ["OMNIQ_LIBRARY"]
        return
    beside = [here / "libomniq.so", here.parent.parent / "build" / "libomniq.so"]
    own = [Path(sys.prefix) / lib / "libomniq.so" for lib in ("lib", "lib64")] if sys.prefix != sys.base_prefix else []
    for path in beside + own:
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
            "libomniq.so is not found: 'make install' puts it where the system looks, 'make install PREFIX=\"$VIRTUAL_ENV\"' "
            "into a virtual environment, OMNIQ_LIBRARY names another place"
        )
    for name, (result, arguments) in _functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    version = library.oq_version().decode()
    if version.split(".")[:2] != VERSION.split(".")[:2]:
        raise ImportError(f"libomniq at {path} has version {version}, this package is for {VERSION}")
    return library
