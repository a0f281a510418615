# Thin: the words that always work. Everything real is in CMakeLists.txt.
BUILD  ?= build
JOBS   ?= $(shell nproc)
PREFIX ?= /usr/local
OUT    ?= out/demo

MAKEFLAGS += --no-print-directory

.PHONY: all check arm demo bench quality fmt lint golden-update install uninstall clean
all:
	@cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_FLAGS) > $(BUILD).log 2>&1 || { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }; rm -f $(BUILD).log
	@cmake --build $(BUILD) -j $(JOBS)

check: all # ends with "N passed, N failed"
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) $(CTEST); status=$$?; \
	 tools/dev/count_tests $(BUILD)/Testing/Temporary/LastTest.log && exit $$status

# For AArch64, on Debian: cross compiled against arm64 libraries unpacked in ARM_ROOT, then the tests that an emulated
# processor ends soon. ARM_TESTS=. runs all of them, for hours.
ARM_ROOT  ?= .cache/arm64
ARM_BUILD ?= build-arm
ARM_TESTS ?= ^(kcheck_.*|test_(base|file_map|options|quant_config|yaml|safetensors|format|format_gguf_iq|format_group|load|media|sched|resolve|resolve_files|method|dialect|dialect_rules|layer_match|cpu_backend|cpu_rates|linear_panel|ops_torch|modules|conv3d|tokenizer|tokenizer_refusals))$$
arm: # ends with "N passed, N failed"
	@tools/dev/arm_root $(ARM_ROOT)
	@$(MAKE) all BUILD=$(ARM_BUILD) CMAKE_FLAGS="-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux.cmake -DOMNIQ_ARM_ROOT=$(abspath $(ARM_ROOT)) $(CMAKE_FLAGS)"
	@ctest --test-dir $(ARM_BUILD) --output-on-failure -j $(JOBS) -R '$(ARM_TESTS)'; status=$$?; \
	 tools/dev/count_tests $(ARM_BUILD)/Testing/Temporary/LastTest.log && exit $$status

demo: all # pictures and a report in out/demo
	@sh tools/dev/demo.sh $(BUILD)/omniq $(OUT)

bench: all # kernels, layers, whole runs; BENCH='--json --only kernels'
	@$(BUILD)/omniq bench -m models/toybox $(BENCH)

quality: all # the tables of docs/QUALITY.md, some ten minutes; QUALITY=times renews the step times alone
	@$(BUILD)/tests/quality_doc $(or $(QUALITY),methods attention recipes budgets times)

fmt: # sources; headers are laid out by hand
	@find src tools tests -name '*.c' | xargs clang-format -i

lint: all
	@tools/dev/lint $(BUILD)

golden-update: all # then look at the diff
	@UPDATE=1 sh tests/golden/run.sh $(BUILD)/omniq
	@UPDATE=1 tools/dev/check_exports $(BUILD)/libomniq.so

install: all
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD)

uninstall: # what 'make install' wrote, by the list that it left in the build folder
	@test -f $(BUILD)/install_manifest.txt || { echo "nothing to take away: $(BUILD)/install_manifest.txt is not there"; exit 1; }
	@sed 's|^|$(DESTDIR)|' $(BUILD)/install_manifest.txt | while IFS= read -r file || [ -n "$$file" ]; do rm -fv "$$file"; done
	@rmdir "$(DESTDIR)$(PREFIX)/include/omniq" 2> /dev/null || true

clean:
	rm -rf $(BUILD) $(ARM_BUILD)
