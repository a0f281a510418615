"""The Python package over libomniq's C interface: pictures are the command's, errors are sentences, memory outlives what
it belongs to. Prints "N passed, N failed"."""

import copy
import ctypes
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

root = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(root / "python"))
import omniq  # noqa: E402
from omniq import _library  # noqa: E402

MODEL = root / "models" / "toybox"
SMALL = {"width": 64, "height": 64, "steps": 2}
command = Path(os.environ["OMNIQ_LIBRARY"]).parent / "omniq"


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = omniq.Model(MODEL, quantization={"transformer": {"method": "int8"}})
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_declares_what_the_header_has(self):
        header = (root / "include" / "omniq" / "omniq.h").read_text()
        for name, (_, arguments) in _library._functions.items():
            found = re.search(rf"{name}\s*\(([^)]*)\)", header)
            self.assertIsNotNone(found, name)
            count = 0 if found.group(1).strip() == "void" else found.group(1).count(",") + 1
            self.assertEqual(count, len(arguments), name)
        self.assertIn(f'OQ_VERSION_STRING "{_library.VERSION}"', header)
        self.assertIn(f'version = "{_library.VERSION}"', (root / "python" / "pyproject.toml").read_text())

    def test_pictures_are_the_commands(self):
        path = Path(self.folder.name) / "command.png"
        mine = Path(self.folder.name) / "mine.png"
        quantization = '{"transformer":{"method":"int8"}}'
        subprocess.run(
            [command, "-q", "-m", MODEL, "--quantization", quantization, "-p", "a red ring", "-W", "64", "-H", "64",
             "--steps", "2", "--seed", "5", "-o", path, "--no-metadata"],
            check=True, stdout=subprocess.DEVNULL,
        )
        self.model.generate("a red ring", seed=5, no_metadata=True, **SMALL)[0].save(mine)
        self.assertEqual(path.read_bytes(), mine.read_bytes())

    def test_a_batch(self):
        media = self.model.generate(["a red ring", "a star"], batch_count=2, seed=3, **SMALL)
        self.assertEqual([m.seed for m in media], [3, 4, 5, 6])
        self.assertEqual((media[0].width, media[0].height, media[0].frames, media[0].fps), (64, 64, 1, 0))
        alone = self.model.generate("a star", seed=5, **SMALL)[0]
        self.assertEqual(omniq.metrics(media[2], alone)["mse"], 0)
        self.assertGreater(omniq.metrics(media[0], media[1])["mse"], 0)
        self.assertFalse(self.model.makes_video)

    def test_pixels_outlive_their_request(self):
        pixels = self.model.generate("a red ring", seed=5, **SMALL)[0].pixels
        before = bytes(pixels)
        gc.collect()
        self.model.generate("a star", seed=6, **SMALL)
        self.assertEqual(before, bytes(pixels))
        self.assertEqual(len(pixels), 64 * 64 * 3)
        self.assertTrue(pixels.readonly)

    def test_arrays(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("numpy is not installed")
        media = self.model.generate("a red ring", seed=5, **SMALL)[0]
        self.assertEqual(media.numpy().shape, (64, 64, 3))
        self.assertEqual(media.numpy().tobytes(), bytes(media.pixels))

    def test_errors_are_sentences(self):
        for call, status, text in (
            (lambda: omniq.Model("no/such/model"), "E_NOTFOUND", "no/such/model"),
            (lambda: omniq.Model(MODEL, quantization="fp9"), "E_CONFIG", "fp8"),
            (lambda: self.model.generate("x", stepz=3), "E_ARG", "steps"),
            (lambda: self.model.generate("x", width=33), "E_ARG", "multiples of 16"),
            (lambda: self.model.generate("x", steps=0), "E_ARG", "steps must be"),
            (lambda: self.model.generate("x", quantization="int8"), "E_ARG", "when the model is opened"),
            (lambda: self.model.generate("x", output="x.png"), "E_ARG", "'output' is no option"),
            (lambda: self.model.generate([]), "E_ARG", "a text or a list of texts"),
            (lambda: self.model.generate(None), "E_ARG", "a text or a list of texts"),
            (lambda: self.model.generate("x", strength=float("nan")), "E_ARG", "cannot be told"),
            (lambda: omniq.Model(MODEL, prompt="x"), "E_ARG", "say it in generate()"),
            (lambda: omniq.Model(MODEL, progress=3), "E_ARG", "callable"),
            (lambda: omniq.run("generatte"), "E_ARG", "generate"),
            (lambda: omniq.run("inspect", "no/such/file"), "E_NOTFOUND", "no/such/file"),
            (lambda: omniq.metrics(b"ab", b"a"), "E_ARG", "the candidate 1"),
        ):
            with self.assertRaises(omniq.Error) as caught:
                call()
            self.assertEqual(caught.exception.status, status, str(caught.exception))
            self.assertIn(text, str(caught.exception))

    def test_endings_are_known(self):
        media = self.model.generate("a star", seed=5, **SMALL)[0]
        for name in ("x.xyz", "x", "x.mp4", "x.y4m"):
            path = Path(self.folder.name) / name
            with self.assertRaises(omniq.Error) as e:
                media.save(path)
            self.assertEqual(e.exception.status, "E_ARG")
            self.assertIn("this build writes pictures as .png", str(e.exception))
            self.assertFalse(path.exists())
        with self.assertRaises(omniq.Error) as e:
            omniq.run("generate", model="nowhere", prompt="a star", output="x.xyz")
        self.assertIn("not '.xyz'", str(e.exception))

    def test_commands(self):
        report = omniq.run("plan", model=MODEL, quantization="fp8")
        self.assertEqual(report.json["components"]["transformer"]["method"], "fp8")
        self.assertIn("transformer", report.text)
        self.assertTrue(report.passed)
        plan = self.model.plan().json
        self.assertEqual(plan["components"]["transformer"]["method"], "int8")
        json.dumps(plan)

    def test_progress(self):
        seen = []
        model = omniq.Model(MODEL, threads=1, progress=lambda *step: seen.append(step))
        model.generate("a red ring", **SMALL)
        self.assertIn(("denoise", 2, 2), seen)

    def test_progress_that_fails(self):
        def fail(phase, done, total):
            if phase == "denoise":
                raise RuntimeError("seen enough")

        model = omniq.Model(MODEL, progress=fail)
        with self.assertRaisesRegex(RuntimeError, "seen enough"):
            model.generate("a red ring", **SMALL)
        nested = omniq.Model(MODEL, progress=lambda phase, *_: phase == "denoise" and nested.generate("a"))
        with self.assertRaisesRegex(omniq.Error, "at work"):
            nested.generate("a red ring", **SMALL)

    def test_previews(self):
        seen, phases = [], []

        def look(pictures, step, steps):
            seen.append((step, steps, bytes(pictures[0].pixels), pictures[0].width))
            with self.assertRaisesRegex(omniq.Error, "at work"):
                self.model.generate("a")

        request = {"seed": 5, "width": 64, "height": 64, "steps": 6}
        media = self.model.generate("a red ring", preview=look, previews=2, progress=lambda *p: phases.append(p), **request)[0]
        self.assertEqual([s[:2] + s[3:] for s in seen], [(2, 6, 64), (4, 6, 64)])
        plain = self.model.generate("a red ring", **request)[0]
        self.assertEqual(bytes(media.pixels), bytes(plain.pixels))  # looking on changes nothing
        for other in (plain.pixels, seen[1][2]):
            self.assertGreater(omniq.metrics(seen[0][2], other)["mse"], 0)
        self.assertEqual([p for p in phases if p[0] == "decode"], [("decode", 0, 1), ("decode", 1, 1)])

        def fail(*_):
            raise RuntimeError("seen enough")

        with self.assertRaisesRegex(RuntimeError, "seen enough"):
            self.model.generate("a red ring", preview=fail, **request)
        with self.assertRaisesRegex(omniq.Error, "generate\\(preview="):
            self.model.generate("a red ring", previews=2, **request)

    def test_pictures_to_begin_with(self):
        first = self.model.generate("a red ring", seed=5, **SMALL)[0]
        path = Path(self.folder.name) / "first.png"
        first.save(path)
        request = dict(SMALL, seed=6, strength=0.5)
        from_path = bytes(self.model.generate("a blue ring", image=path, **request)[0].pixels)
        given = [first, [first], first.pixels.cast("B", [64, 64, 3])]
        try:
            given += [first.numpy(), first.pil()]
        except ImportError:
            pass
        for image in given:
            self.assertEqual(bytes(self.model.generate("a blue ring", image=image, **request)[0].pixels), from_path)
        for wrong in (3, bytes(64 * 64 * 3), first.pixels.cast("B", [64, 192, 1])):
            with self.assertRaisesRegex(omniq.Error, "image: an? "):
                self.model.generate("a blue ring", image=wrong, **request)

    def test_a_closed_model(self):
        with omniq.Model(MODEL) as model:
            media = model.generate("a red ring", **SMALL)[0]
        model.close()
        self.assertEqual(len(media.pixels), 64 * 64 * 3)
        self.assertIn("closed", repr(model))
        with self.assertRaisesRegex(omniq.Error, "is closed"):
            model.generate("a red ring")

    def test_a_model_is_closed_before_its_turn(self):
        model = omniq.Model(MODEL)
        failed, waiting = [], threading.Event()

        def late():
            waiting.set()
            try:
                model.generate("a red ring", **SMALL)
            except omniq.Error as e:
                failed.append(str(e))

        env = model._env
        with env.lock():  # as a call at work holds it
            thread = threading.Thread(target=late)
            thread.start()
            waiting.wait()
            time.sleep(0.1)
            model._open = False  # what close() does, whose turn came first
        thread.join()
        model._open = True
        model.close()
        self.assertEqual(len(failed), 1)
        self.assertIn("is closed", failed[0])

    def test_the_package_knows_the_header(self):
        """Every function of the C interface is used here, or left out with a reason."""
        left_out = {
            "oq_command_at", "oq_option_list",  # 'omniq --help' has them
            "oq_options_copy", "oq_options_set",  # options are made from JSON at once
            "oq_model_check_output",  # saving says it
            "oq_status_text",  # errors have a sentence
            "oq_env_file_lost",  # is for a signal handler in C
        }
        header = (root / "include" / "omniq" / "omniq.h").read_text()
        declared = set(re.findall(r"^OQ_API [^;]*?(oq_\w+)\(", header, re.MULTILINE))
        self.assertGreater(len(declared), 30)
        self.assertEqual(declared, set(_library._functions) | left_out)
        self.assertFalse(left_out & set(_library._functions))

    def test_lines_of_a_result_are_told(self):
        env = omniq._Env()
        with self.assertLogs("omniq", "DEBUG") as logs:
            for level in (-1, 0, 1, 2, 7):
                env._callbacks[0](None, level, b"x")
        self.assertEqual([r.levelname for r in logs.records], ["INFO", "WARNING", "INFO", "DEBUG", "DEBUG"])

    def test_methods_of_the_callers_own(self):
        def choose(layer, outputs, inputs):
            self.assertGreater(outputs * inputs, 0)
            return "int8" if "feed_forward" in layer else "none"

        model = omniq.Model(MODEL, quantization={"transformer": "mine"}, methods={"mine": choose})
        layers = model.plan().json["components"]["transformer"]["layers"]
        quantized = {layer["name"] for layer in layers if layer["quantized"]}
        self.assertTrue(quantized)
        self.assertTrue(all("feed_forward" in name for name in quantized), quantized)
        for wrong, sentence in ((None, "callable, not None"), (lambda *_: 8, "a method's name or None for .*, not 8")):
            with self.assertRaisesRegex(omniq.Error, sentence):
                omniq.Model(MODEL, quantization={"transformer": "mine"}, methods={"mine": wrong})
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            omniq.Model(MODEL, quantization={"transformer": "mine"}, methods={"mine": lambda *_: 1 / 0})

    def test_copies_are_refused(self):
        with self.assertRaises(TypeError):
            copy.copy(self.model)
        with self.assertRaises(TypeError):
            copy.deepcopy(self.model.generate("a red ring", **SMALL)[0])

    def test_interrupt(self):
        model = omniq.Model(MODEL)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            model.generate("a red ring", steps=1000)
        self.assertEqual(len(model.generate("a red ring", **SMALL)), 1)  # and goes on afterwards

    def test_two_interrupts(self):
        model = omniq.Model(MODEL)
        for delay in (0.2, 0.202):
            threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            try:
                model.generate("a red ring", steps=1000)
            finally:
                time.sleep(0.1)  # the second one is not the next test's
        self.assertEqual(len(model.generate("a red ring", **SMALL)), 1)

    def test_cycles_are_collected_in_any_order(self):
        for _ in range(3):
            model = omniq.Model(MODEL)
            media = model.generate("a red ring", **SMALL)
            ring = [model._env, media, model]
            ring.append(ring)
            model.cycle = media[0].cycle = model._env.cycle = ring
            del ring, media, model
            gc.collect()
        self.assertEqual(len(self.model.generate("a red ring", **SMALL)), 1)

    def test_structures_have_the_headers_size(self):
        source = '#include "omniq/omniq.h"\n#include <stdio.h>\nint main(void) { printf("%zu %zu %zu %zu %zu %zu", ' \
                 "sizeof(oq_env_params), sizeof(oq_progress), sizeof(oq_metrics), sizeof(oq_option_info), " \
                 "sizeof(oq_preview), sizeof(oq_custom_method)); }"
        program = Path(self.folder.name) / "sizes"
        built = subprocess.run(["cc", "-x", "c", "-", "-I", root / "include", "-o", program], input=source, text=True,
                               capture_output=True)
        if built.returncode:
            self.skipTest("no C compiler")
        sizes = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        self.assertEqual(sizes, " ".join(str(ctypes.sizeof(s)) for s in (_library.EnvParams, _library.Progress, _library.Metrics, _library.OptionInfo,
                                                                      _library.Preview, _library.CustomMethod)))


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=0).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad - len(result.skipped)} passed, {bad} failed")
    sys.exit(bad > 0)
