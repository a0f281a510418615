# Thin: the words that always work. Everything real is in CMakeLists.txt.
BUILD  ?= build
JOBS   ?= $(shell nproc)
PREFIX ?= /usr/local

MAKEFLAGS += --no-print-directory

.PHONY: all check clean install
all:
	@cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_FLAGS) > $(BUILD).log 2>&1 || { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }; rm -f $(BUILD).log
	@cmake --build $(BUILD) -j $(JOBS)

check: all
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

install: all
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD)

clean:
	rm -rf $(BUILD)
