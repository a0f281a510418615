"""Quantized diffusion models through libomniq.

    import omniq

    model = omniq.Model("models/toybox", quantization="fp8")
    picture = model.generate("a large red ring", seed=7)[0]
    picture.save("ring.png")

    report = omniq.run("compare", model="models/toybox", candidate_quantization="int8", prompt="a large red ring")
    print(report.text, report.passed)

Keyword arguments are the options of the command ('omniq generate --help'), with '_' for '-': numbers, texts, booleans,
lists; a quantization may be a name or a dict. What fails raises omniq.Error with one sentence. Ctrl-C stops the work at its
next layer.
"""

import ctypes as c
import json
import logging
import os
import threading

from . import _library

__all__ = ["Error", "Media", "Model", "Report", "metrics", "run", "version"]

_lib = _library.load()
_log = logging.getLogger("omniq")
version = _lib.oq_version().decode()


class Error(Exception):
    """What failed, in one sentence; `status` is the name of an oq_status: "E_ARG", "E_CONFIG", "E_MISMATCH", ..."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class _Env:
    """An oq_env: errors, progress, cancelling, threads. Serves one call at a time."""

    def __init__(self, threads=0, progress=None):
        if progress is not None and not callable(progress):
            raise Error("E_ARG", f"progress has to be callable, not {progress!r}")
        self._showing = self._failed = None
        said = ["libomniq gives no environment"]
        levels = (logging.WARNING, logging.INFO, logging.DEBUG)

        def log(_, level, message):
            said[0] = message.decode(errors="replace")
            _log.log(levels[level], "%s", said[0])

        def show(_, step):
            step = step.contents
            self._showing = threading.get_ident()
            try:
                progress(step.phase.decode(), step.done, step.total)
            except BaseException as e:  # stops the work, and is raised where that was asked for
                self._failed = e
                _lib.oq_env_cancel(self.pointer)
            finally:
                self._showing = None

        self._callbacks = (_library.EnvParams.Log(log), _library.Progress.Call(show))  # they live as long as the env
        params = _library.EnvParams(size=c.sizeof(_library.EnvParams), n_threads=threads, log=self._callbacks[0])
        if progress:
            params.progress = c.cast(self._callbacks[1], c.c_void_p)
        self.pointer = c.c_void_p()
        self._lock = threading.Lock()
        status = _lib.oq_env_new(c.byref(params), c.byref(self.pointer))
        if status != 0:
            raise Error(_lib.oq_status_name(status).decode(), said[0])
        self._users, self._alive = [None], [None]  # lists, because their methods are atomic

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

    def call(self, function, *arguments):
        """Calls from a thread of its own, so that Ctrl-C reaches Python while C is at work. Returns when C has, in any case: what
        the caller holds is in use until then."""
        with self.lock():
            _lib.oq_env_clear(self.pointer)
            self._failed = None
            status, interrupt, done = [], None, threading.Event()

            def work():
                try:
                    status.append(function(*arguments))
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
        self.json = json.loads(_lib.oq_report_json(pointer))
        self.text = _lib.oq_report_text(pointer).decode()
        self.passed = _lib.oq_report_passed(pointer)
        _lib.oq_report_free(pointer)

    def __repr__(self):
        return f"<omniq.Report passed={self.passed}>"


def run(command, *arguments, progress=None, threads=0, **options):
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


class Media:
    """One picture or video: 8 bit RGB."""

    def __init__(self, owner, index):
        self._owner, self._index = owner, index
        p = owner.pointer
        self.width, self.height = _lib.oq_media_width(p), _lib.oq_media_height(p)
        self.frames, self.fps = _lib.oq_media_frames(p), _lib.oq_media_fps(p)  # fps 0: a picture
        self.seed = _lib.oq_media_seed(p, index)

    def __reduce__(self):
        raise TypeError("a Media cannot be copied or pickled: take bytes(media.pixels)")

    @property
    def pixels(self):
        """A read-only memoryview of the bytes, [frames, height, width, 3], without a copy."""
        n = self.frames * self.height * self.width * 3
        address = c.cast(_lib.oq_media_pixels(self._owner.pointer, self._index), c.c_void_p).value
        block = (c.c_uint8 * n).from_address(address)
        block.owner = self._owner  # the bytes stay as long as somebody looks at them
        return memoryview(block).cast("B").toreadonly()

    def numpy(self):
        """A numpy array [height, width, 3]; of a video [frames, height, width, 3]. No copy."""
        import numpy

        shape = (self.height, self.width, 3) if self.fps == 0 else (self.frames, self.height, self.width, 3)
        return numpy.frombuffer(self.pixels, numpy.uint8).reshape(shape)

    def pil(self):
        """A PIL.Image; of a video a list of them."""
        from PIL import Image

        size = self.width * self.height * 3
        images = [
            Image.frombytes("RGB", (self.width, self.height), bytes(self.pixels[i * size : (i + 1) * size]))
            for i in range(self.frames)
        ]
        return images[0] if self.fps == 0 else images

    def save(self, path):
        """By the name's ending; the file remembers its run."""
        env = self._owner.env
        env.call(_lib.oq_media_save, env.pointer, self._owner.pointer, self._index, os.fsencode(path))

    def __repr__(self):
        return f"<omniq.Media {self.width}x{self.height}, {self.frames} frame{'s' * (self.frames > 1)}, seed {self.seed}>"


class Model:
    """A model in memory. `options`: those of `omniq generate` that name a model, its quantization and where it runs.
    `progress(phase, done, total)` is called from another thread while the work goes on."""

    def __init__(self, model, threads=0, progress=None, **options):
        _check_names(options, ("model", "quantization", "run"), "Model: say it in generate()")
        self._env = _Env(threads, progress)
        self._pointer = c.c_void_p()
        o = _Options(self._env, "generate", (), dict(options, model=model))
        self._env.call(_lib.oq_model_open, self._env.pointer, o.pointer, c.byref(self._pointer))
        self._env.hold()
        self._open = True

    def __del__(self):
        if hasattr(self, "_open"):
            _lib.oq_model_close(self._pointer)
            self._env.drop()

    def __reduce__(self):
        raise TypeError("a model cannot be copied or pickled")

    @property
    def makes_video(self):
        return _lib.oq_model_makes_video(self._pointer)

    def plan(self):
        """Every layer's scheme, kernel and bytes: a Report."""
        report = c.c_void_p()
        self._env.call(_lib.oq_model_plan, self._env.pointer, self._pointer, c.byref(report))
        return Report(report)

    def generate(self, prompt, **options):
        """A list of Media: batch_count of them for each prompt (a text or a list of texts)."""
        _check_names(options, ("request",), "generate(): say it when the model is opened")
        if not isinstance(prompt, str) and not (prompt and all(isinstance(p, str) for p in prompt)):
            raise Error("E_ARG", f"a prompt is a text or a list of texts, not {prompt!r}")
        o = _Options(self._env, "generate", (), dict(options, prompt=prompt))
        media = c.c_void_p()
        self._env.call(_lib.oq_generate, self._env.pointer, self._pointer, o.pointer, c.byref(media))
        owner = _Pixels(self._env, media)
        return [Media(owner, i) for i in range(_lib.oq_media_count(media))]


def metrics(reference, candidate):
    """PSNR, errors and cosine similarity between two equally long buffers of bytes (Media.pixels, numpy arrays)."""
    a, b = (bytes(x.pixels if isinstance(x, Media) else x) for x in (reference, candidate))
    if len(a) != len(b):
        raise Error("E_ARG", f"the reference has {len(a)} values, the candidate {len(b)}")
    out = _library.Metrics()
    _lib.oq_metrics_u8(a, b, len(a), c.byref(out))
    return {name: getattr(out, name) for name, _ in _library.Metrics._fields_}
