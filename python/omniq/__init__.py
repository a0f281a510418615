"""Quantized diffusion models through libomniq.

    import omniq

    with omniq.Model("models/toybox", quantization="fp8") as model:
        picture = model.generate("a large red ring", seed=7)[0]
    picture.save("ring.png")

    report = omniq.run("compare", model="models/toybox", candidate_quantization="int8", prompt="a large red ring")
    print(report.text, report.passed)

Keyword arguments are the options of the command ('omniq generate --help'), with '_' for '-': numbers, texts, booleans,
lists; a quantization may be a name or a dict. What fails raises omniq.Error with one sentence. Ctrl-C stops the work at its
next layer.
"""

import ctypes as c
import inspect
import json
import logging
import os
import struct
import tempfile
import threading
import zlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _library

__all__ = ["Error", "Media", "Model", "Picture", "Report", "metrics", "run", "version"]

_lib = _library.load()
_log = logging.getLogger("omniq")
version: str = _lib.oq_version().decode()

Progress = Callable[[str, int, int], Any]  # phase ("load", "text", "denoise", "decode", "save"), done, total
Preview = Callable[["List[Picture]", int, int], Any]  # what the pictures are like so far, step, steps
Choose = Callable[[str, int, int], Optional[str]]  # a layer's full name, its outputs, its inputs: a method's name


class Error(Exception):
    """What failed, in one sentence; `status` is the name of an oq_status: "E_ARG", "E_CONFIG", "E_MISMATCH", ..."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


class _Env:
    """An oq_env: errors, progress, cancelling, threads. Serves one call at a time."""

    def __init__(self, threads=0, progress=None, methods=None):
        self.progress = _callable("progress", progress)
        self.preview = None  # of the call that is at work
        self._showing = self._failed = None
        said = ["libomniq gives no environment"]
        levels = {-1: logging.INFO, 0: logging.WARNING, 1: logging.INFO}  # oq_log_level; -1: a line of a result

        def log(_, level, message):
            said[0] = message.decode(errors="replace")
            _log.log(levels.get(level, logging.DEBUG), "%s", said[0])

        def tell(callback, *values):
            self._showing = threading.get_ident()
            try:
                return callback(*values)
            except BaseException as e:  # stops the work, and is raised where that was asked for
                self._failed = e
                _lib.oq_env_cancel(self.pointer)
            finally:
                self._showing = None

        def show(_, step):
            if self.progress:
                step = step.contents
                tell(self.progress, step.phase.decode(), step.done, step.total)

        def look(_, preview):
            if self.preview and self._failed is None:
                p = preview.contents
                tell(lambda: self.preview(_copies(p.media), p.step, p.steps))

        self._callbacks = (_library.LogCall(log), _library.ProgressCall(show), _library.PreviewCall(look))
        params = _library.EnvParams(size=c.sizeof(_library.EnvParams), n_threads=threads)
        params.log, params.progress, params.preview = self._callbacks  # they live as long as the env
        self.pointer = c.c_void_p()
        self._lock = threading.Lock()
        status = _lib.oq_env_new(c.byref(params), c.byref(self.pointer))
        if status != 0:
            raise Error(_lib.oq_status_name(status).decode(), said[0])
        self._users, self._alive = [None], [None]  # lists, because their methods are atomic
        self._methods = [self._register(name, choose, tell) for name, choose in (methods or {}).items()]

    def _register(self, name, choose, tell):
        """A method whose layers a function of the caller's decides; what C sees of it lives as long as the env."""
        answers: Dict[str, Any] = {}
        if not callable(choose):
            raise Error("E_ARG", f"method '{name}' has to be callable, not {choose!r}")

        def ask(layer, n, k):
            answer = choose(layer, n, k)
            if answer is not None and not isinstance(answer, str):
                raise Error("E_ARG", f"method '{name}' has to give a method's name or None for {layer}, not {answer!r}")
            return answer

        def chosen(_, layer, n, k):
            answer = tell(ask, layer.decode(errors="replace"), n, k)
            if answer is None:
                return None
            return c.cast(answers.setdefault(answer, c.create_string_buffer(answer.encode())), c.c_void_p).value

        row = _library.CustomMethod(
            size=c.sizeof(_library.CustomMethod), name=name.encode(), choose=_library.ChooseCall(chosen)
        )
        self.check(_lib.oq_method_register(self.pointer, c.byref(row)))
        return row

    def hold(self):
        self._users.append(None)

    def drop(self):
        """What was made within the environment is gone before the environment is, in whatever order a collection of
        cycles finds them."""
        self._users.pop()
        if self._users:
            return
        try:
            self._alive.pop()
        except IndexError:
            return
        _lib.oq_env_free(self.pointer)

    def __del__(self):
        if hasattr(self, "_users"):
            self.drop()

    def lock(self):
        if self._showing == threading.get_ident():
            raise Error("E_ARG", "a progress callback cannot use the model that is at work")
        return self._lock

    def check(self, status):
        if status != 0:
            raise Error(_lib.oq_status_name(status).decode(), _lib.oq_env_error(self.pointer).decode(errors="replace"))

    def call(self, function, *arguments, progress=None, preview=None):
        """Calls from a thread of its own, so that Ctrl-C reaches Python while C is at work. Returns when C has, in any case: what
        the caller holds is in use until then. `progress` takes the place of the environment's. An argument that is a method is
        asked for its value when no other call is at work any more."""
        with self.lock():
            values = [a() if inspect.ismethod(a) else a for a in arguments]
            _lib.oq_env_clear(self.pointer)
            self._failed, self.preview = None, preview
            before, self.progress = self.progress, progress or self.progress
            status, interrupt, done = [], None, threading.Event()

            def work():
                try:
                    status.append(function(*values))
                finally:
                    done.set()

            thread = threading.Thread(target=work)
            try:
                thread.start()
            except BaseException as e:
                if thread.ident is None:
                    raise
                interrupt = e
            while not done.is_set():  # not join(): an interrupted one takes a thread at work for ended
                try:
                    if interrupt:
                        _lib.oq_env_cancel(self.pointer)
                    done.wait()
                except BaseException as e:
                    interrupt = e
            self.progress, self.preview = before, None
            if interrupt:
                try:
                    raise interrupt
                finally:
                    del interrupt  # its traceback holds this frame
            if self._failed is not None:
                try:
                    raise self._failed
                finally:
                    self._failed = None
            self.check(status[0])


def _callable(what, value):
    if value is not None and not callable(value):
        raise Error("E_ARG", f"{what} has to be callable, not {value!r}")
    return value


def _plain(value):
    """A value as JSON has it: paths are texts."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _check_names(options, wanted, where):
    """Options of other groups would be dropped by the library: each belongs to Model or to generate."""
    for name in options:
        row = _lib.oq_option_find(b"generate", name.encode())
        if not row:
            continue  # the library has the sentence for it, and names the nearest
        row = row.contents
        if row.name == b"no-metadata":
            continue
        if row.group.decode() not in wanted:
            raise Error("E_ARG", f"'{name}' is no option of {where}")


class _Options:
    def __init__(self, env, command, arguments, options):
        self.pointer = c.c_void_p()
        given = {name: _plain(value) for name, value in options.items() if value is not None}
        try:
            text = json.dumps(given, allow_nan=False)
        except (TypeError, ValueError) as e:
            raise Error("E_ARG", f"an option cannot be told: {e}") from None
        with env.lock():
            _lib.oq_env_clear(env.pointer)
            env.check(_lib.oq_options_new(env.pointer, command.encode(), c.byref(self.pointer)))
            self._env = env
            env.hold()
            for argument in arguments:
                env.check(_lib.oq_options_add_argument(self.pointer, os.fsencode(argument)))
            env.check(_lib.oq_options_set_json(self.pointer, text.encode()))

    def __del__(self):
        if hasattr(self, "_env"):
            _lib.oq_options_free(self.pointer)
            self._env.drop()


class Report:
    """What a command found: `json` as Python values, `text` for people, `passed` False where a policy was missed."""

    def __init__(self, pointer):
        self.json: Dict[str, Any] = json.loads(_lib.oq_report_json(pointer))
        self.text: str = _lib.oq_report_text(pointer).decode()
        self.passed: bool = _lib.oq_report_passed(pointer)
        _lib.oq_report_free(pointer)

    def __repr__(self):
        return f"<omniq.Report passed={self.passed}>"


def run(command: str, *arguments: Any, progress: Optional[Progress] = None, threads: int = 0, **options: Any) -> Report:
    """A command from beginning to end: run("inspect", path), run("quantize", path, quantization="nvfp4", output=to)."""
    env = _Env(threads, progress)
    o = _Options(env, command, arguments, options)
    report = c.c_void_p()
    env.call(_lib.oq_run, o.pointer, c.byref(report))
    return Report(report)


class _Pixels:
    """Keeps the memory of all items of one request."""

    def __init__(self, env, pointer):
        self.env, self.pointer = env, pointer
        env.hold()

    def __del__(self):
        _lib.oq_media_free(self.pointer)
        self.env.drop()


class Picture:
    """One picture or video: 8 bit RGB."""

    width: int
    height: int
    frames: int
    fps: float  # 0: a picture

    def _measure(self, media):
        self.width, self.height = _lib.oq_media_width(media), _lib.oq_media_height(media)
        self.frames, self.fps = _lib.oq_media_frames(media), _lib.oq_media_fps(media)

    @property
    def pixels(self) -> memoryview:
        """A read-only memoryview of the bytes, [frames, height, width, 3], without a copy."""
        raise NotImplementedError

    def numpy(self) -> Any:
        """A numpy array [height, width, 3]; of a video [frames, height, width, 3]. No copy."""
        import numpy

        shape = (self.height, self.width, 3) if self.fps == 0 else (self.frames, self.height, self.width, 3)
        return numpy.frombuffer(self.pixels, numpy.uint8).reshape(shape)

    def pil(self) -> Any:
        """A PIL.Image; of a video a list of them."""
        from PIL import Image

        size = self.width * self.height * 3
        images = [
            Image.frombytes("RGB", (self.width, self.height), bytes(self.pixels[i * size : (i + 1) * size]))
            for i in range(self.frames)
        ]
        return images[0] if self.fps == 0 else images


class _Copy(Picture):
    """A picture whose bytes are Python's."""

    def __init__(self, media, index):
        self._measure(media)
        n = self.frames * self.height * self.width * 3
        self._bytes = c.string_at(_lib.oq_media_pixels(media, index), n)

    @property
    def pixels(self):
        return memoryview(self._bytes)


def _copies(media):
    return [_Copy(media, i) for i in range(_lib.oq_media_count(media))]


class Media(Picture):
    """What a request made: a picture or video, and the seed that made it."""

    seed: int

    def __init__(self, owner, index):
        self._owner, self._index = owner, index
        self._measure(owner.pointer)
        self.seed = _lib.oq_media_seed(owner.pointer, index)

    def __reduce__(self):
        raise TypeError("a Media cannot be copied or pickled: take bytes(media.pixels)")

    @property
    def pixels(self):
        n = self.frames * self.height * self.width * 3
        address = c.cast(_lib.oq_media_pixels(self._owner.pointer, self._index), c.c_void_p).value
        block: Any = (c.c_uint8 * n).from_address(address or 0)
        block.owner = self._owner  # the bytes stay as long as somebody looks at them
        return memoryview(block).cast("B").toreadonly()

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """By the name's ending; the file remembers its run."""
        env = self._owner.env
        env.call(_lib.oq_media_save, env.pointer, self._owner.pointer, self._index, os.fsencode(path))

    def __repr__(self):
        return f"<omniq.Media {self.width}x{self.height}, {self.frames} frame{'s' * (self.frames > 1)}, seed {self.seed}>"


def _png(width, height, rgb):
    """The bytes of a PNG file, hardly compressed: it is read again at once."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + rgb[y * width * 3 : (y + 1) * width * 3] for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def _image_file(value, folder, index):
    """A picture to begin with as a file: a path is one; a Picture, a PIL.Image or an array of bytes [height, width, 3]
    becomes one."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, Picture):
        width, height, rgb = value.width, value.height, bytes(value.pixels)
    elif hasattr(value, "convert") and hasattr(value, "tobytes"):
        (width, height), rgb = value.size, value.convert("RGB").tobytes()
    else:
        try:
            view = memoryview(value)
        except TypeError:
            raise Error("E_ARG", f"image: a path, a picture or an array is needed, not {type(value).__name__}") from None
        shape = list(view.shape or [])
        if view.format != "B" or len(shape) != 3 or shape[2] != 3:
            raise Error("E_ARG", f"image: an array of uint8 [height, width, 3] is needed, not '{view.format}' {shape}")
        height, width, rgb = shape[0], shape[1], view.tobytes()
    path = os.path.join(folder, f"{index}.png")
    with open(path, "wb") as f:
        f.write(_png(width, height, rgb))
    return path


class Model:
    """A model in memory. `options`: those of `omniq generate` that name a model, its quantization and where it runs.
    `progress(phase, done, total)` is called from another thread while the work goes on. `methods` are of the caller's own:
    {"mine": choose} lets quantization="mine" ask choose(layer, outputs, inputs) for the method of each layer ("none": plain;
    None refuses it)."""

    def __init__(
        self,
        model: Union[str, "os.PathLike[str]"],
        threads: int = 0,
        progress: Optional[Progress] = None,
        methods: Optional[Dict[str, Choose]] = None,
        **options: Any,
    ):
        _check_names(options, ("model", "quantization", "run"), "Model: say it in generate()")
        self._env = _Env(threads, progress, methods)
        self._pointer = c.c_void_p()
        self._path = os.fspath(model)
        o = _Options(self._env, "generate", (), dict(options, model=model))
        self._env.call(_lib.oq_model_open, self._env.pointer, o.pointer, c.byref(self._pointer))
        self._env.hold()
        self._open = True

    def close(self) -> None:
        """Gives the model's memory back now; what it made stays. Without it that happens when nobody holds the model."""
        with self._env.lock():
            if self._open:
                self._open = False
                _lib.oq_model_close(self._pointer)
                self._env.drop()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_open", False):
            _lib.oq_model_close(self._pointer)
            self._env.drop()

    def __repr__(self):
        return f"<omniq.Model {self._path!r}{'' if self._open else ', closed'}>"

    def _opened(self):
        if not self._open:
            raise Error("E_ARG", f"the model {self._path!r} is closed")
        return self._pointer

    def __reduce__(self):
        raise TypeError("a model cannot be copied or pickled")

    @property
    def makes_video(self) -> bool:
        return _lib.oq_model_makes_video(self._opened())

    def plan(self) -> Report:
        """Every layer's scheme, kernel and bytes."""
        report = c.c_void_p()
        self._env.call(_lib.oq_model_plan, self._env.pointer, self._opened, c.byref(report))
        return Report(report)

    def generate(
        self,
        prompt: Union[str, Sequence[str]],
        progress: Optional[Progress] = None,
        preview: Optional[Preview] = None,
        **options: Any,
    ) -> List[Media]:
        """batch_count media for each prompt. `image`: a path, a Picture, a PIL.Image or an array of uint8 [height, width, 3],
        or a list of them. `preview(pictures, step, steps)` sees them before they are done, `previews` times (4)."""
        _check_names(options, ("request",), "generate(): say it when the model is opened")
        several = isinstance(prompt, (list, tuple)) and prompt and all(isinstance(p, str) for p in prompt)
        if not isinstance(prompt, str) and not several:
            raise Error("E_ARG", f"a prompt is a text or a list of texts, not {prompt!r}")
        _callable("progress", progress), _callable("preview", preview)
        if preview:
            options.setdefault("previews", 4)
        elif options.get("previews"):
            raise Error("E_ARG", "previews are for somebody who looks: generate(preview=...)")
        with tempfile.TemporaryDirectory() as folder:
            if options.get("image") is not None:
                image = options["image"]
                images = image if isinstance(image, (list, tuple)) else [image]
                options["image"] = [_image_file(value, folder, i) for i, value in enumerate(images)]
            o = _Options(self._env, "generate", (), dict(options, prompt=prompt))
            media = c.c_void_p()
            self._env.call(
                _lib.oq_generate, self._env.pointer, self._opened, o.pointer, c.byref(media),
                progress=progress, preview=preview,
            )  # fmt: skip
        owner = _Pixels(self._env, media)
        return [Media(owner, i) for i in range(_lib.oq_media_count(media))]


def metrics(reference: Any, candidate: Any) -> Dict[str, float]:
    """PSNR, errors and cosine similarity between two equally long buffers of bytes (Media.pixels, numpy arrays)."""
    a, b = (bytes(x.pixels if isinstance(x, Picture) else x) for x in (reference, candidate))
    if len(a) != len(b):
        raise Error("E_ARG", f"the reference has {len(a)} values, the candidate {len(b)}")
    out = _library.Metrics()
    _lib.oq_metrics_u8(a, b, len(a), c.byref(out))
    return {name: getattr(out, name) for name in _library.METRICS}
