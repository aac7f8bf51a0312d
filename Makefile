# Every habit of the project in one place. `make` lists them.
#
# Variables: PYTHON  the interpreter that environments are made from (default: python3)
#            VENV    the environment for demo, test, bench and lint (default: .venv)
#            ARGS    further arguments for the program that a target runs
#            PLATFORM  what `make gpu` runs on, as JAX calls it (default: cuda)

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PLATFORM ?= cuda

VENV_DEBUG := .venv-debug
VENV_ASAN := .venv-asan
VENV_CI := .venv-ci
VENV_PROGRAMS := .venv-programs

# Two workers at most: each one holds a copy of JAX, and compiles.
PYTEST_PARALLEL := -n auto --maxprocesses=2 --dist worksteal

# Folders with compiled modules.
ROOMS := marshal/jaxmarshal/_core marshal/jaxmarshal/_core/* marshal/jaxmarshal/_reports

# An editable install follows the Python files by itself; a built one has to be told.
COMPILED := setup.py pyproject.toml marshal/jaxmarshal/_version.py \
	$(wildcard $(foreach end,pyx pxd c,$(addsuffix /*.$(end),$(ROOMS))) include/jaxmarshal/*.h)
PACKAGED := $(COMPILED) MANIFEST.in README.md \
	$(wildcard marshal/jaxmarshal/py.typed \
	$(foreach end,py pyi html,$(addsuffix /*.$(end),marshal/jaxmarshal marshal/jaxmarshal/* $(ROOMS))))

# Which code of a sanitized build was reached, for the fuzzer; others need it for its symbol.
COVERAGE := build/coverage.so

# The sanitizers' runtime and the C++ one must be there before Python is, or they miss its calls.
# PYTHONMALLOC makes every Python object an allocation of its own. Reports go straight to the
# terminal (--capture=sys): a process that a report ends would take a captured one with it.
SANITIZED = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) \
	$$(gcc -print-file-name=libstdc++.so) $(abspath $(COVERAGE))" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 PYTHONMALLOC=malloc \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# XLA's CPU client as a plugin, reached as CUDA and TPU are; fetched like any test dependency.
PLUGIN := build/plugin/plugin.json
ON_PLUGIN := PJRT_NAMES_AND_LIBRARY_PATHS=xcpu:$(abspath $(PLUGIN))
# With it: what reads arrays, places them, records calls and runs with them, and random programs.
PLUGIN_TESTS := $(wildcard $(addprefix tests/*/,$(addsuffix .py,$(addprefix test_,\
	backends control_flow device_put_arguments device_put_data device_put_differential \
	device_put_options eager_differential eager_lifetime eager_objects eager_replaced eager_traps \
	every_function execute_differential execute_traps functions fusion host_data host_sources \
	index jit_arguments jit_calls jit_differential jit_guard jit_in_place jit_lifetime \
	jit_placement jit_protocol jit_static layout meshes operators packing packing_chunks \
	packing_host packing_placement plan_traps shard_args staging stepping_aside))))

NEVER_SLOWER = $(VENV)/bin/python -m jaxmarshal bench --never-slower --quick --seconds 0.3 $(ARGS)

# Modules with a stub, as stubtest wants them named.
STUBBED := $(patsubst %.__init__,%,$(subst /,.,$(patsubst marshal/%.pyi,%,\
	$(wildcard $(addsuffix /*.pyi,$(ROOMS) marshal/jaxmarshal/compat)))))

STUBTEST := --mypy-config-file pyproject.toml --allowlist .ci/stubtest-allow.txt \
	--ignore-unused-allowlist --ignore-disjoint-bases

.DELETE_ON_ERROR:
.PHONY: help build demo test matrix plugin never-slower gpu-kit gpu debug asan memcheck fuzz guards soak \
	bench programs docs pages dist lint clean

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "%-13s %s\n", $$1, $$2 }' Makefile

build: $(VENV)/.installed ## make the environment, with the package built into it (editable)

demo: $(VENV)/.installed ## put real data on the device with JAX and with jaxmarshal
	$(VENV)/bin/python demo/digits.py $(ARGS)

# What is marked slow runs in the matrix: random and exhaustive programs, the self-check, reports. So does
# the rest of modules that take long.
test: $(VENV)/.installed ## run the tests on this Python, but for the slow ones
	$(VENV)/bin/python -m pytest $(PYTEST_PARALLEL) -m "not slow and not rest" $(ARGS)

matrix: $(VENV_CI)/.installed ## run the tests on every supported Python and JAX
	$(VENV_CI)/bin/nox -s matrix $(if $(ARGS),-- $(ARGS))

plugin: $(VENV)/.installed $(PLUGIN) ## run tests behind the PJRT C API, alone and beside the CPU
	JAX_PLATFORMS=xcpu $(ON_PLUGIN) JAXMARSHAL_SAMPLE=1 $(VENV)/bin/python -m pytest $(PYTEST_PARALLEL) \
	  -m "not rest" $(PLUGIN_TESTS) $(ARGS)
	JAX_PLATFORMS=xcpu,cpu $(ON_PLUGIN) $(VENV)/bin/python -m pytest tests/values/test_backends.py \
	  tests/values/test_layout.py $(ARGS)
	JAX_PLATFORMS=xcpu $(ON_PLUGIN) $(VENV)/bin/python -m jaxmarshal doctor --check
	JAX_PLATFORMS=xcpu,cpu $(ON_PLUGIN) $(VENV)/bin/python -m jaxmarshal doctor --check

never-slower: $(VENV)/.installed $(PLUGIN) ## see that no call is slower than with plain JAX
	JAX_PLATFORMS=cpu $(NEVER_SLOWER)
	JAX_PLATFORMS=cpu JAXMARSHAL_OBJECT_LAYOUT=off $(NEVER_SLOWER)
	JAX_PLATFORMS=xcpu $(ON_PLUGIN) $(NEVER_SLOWER)
	JAX_PLATFORMS=xcpu,cpu $(ON_PLUGIN) $(NEVER_SLOWER)

gpu-kit: $(VENV)/.installed ## build and fetch what `make gpu` needs, where there is a network
	$(VENV)/bin/python .ci/gpu.py kit build/gpu

# With an interpreter that has JAX for the accelerator: make gpu PYTHON=python3 PLATFORM=cuda
gpu: ## check, test and measure on an accelerator, in nine minutes, into build/gpu/report
	$(PYTHON) .ci/gpu.py run build/gpu $(PLATFORM) $(PLUGIN_TESTS)

debug: $(VENV_DEBUG)/.installed ## run the tests on a build with checks and counters on
	$(VENV_DEBUG)/bin/python -m pytest $(PYTEST_PARALLEL) -m "not commands and not slow" $(ARGS)

asan: $(VENV_ASAN)/.installed $(COVERAGE) ## run the tests on a build with the sanitizers on
	$(SANITIZED) $(VENV_ASAN)/bin/python -m pytest -m "not slow" --capture=sys $(ARGS)

memcheck: $(VENV)/.installed ## take each path into C under valgrind, where there is one
	$(VENV)/bin/python soak/memcheck.py $(ARGS)

fuzz: $(VENV_ASAN)/.installed $(COVERAGE) ## look for arguments that reach new code (ARGS="--seconds 300")
	$(SANITIZED) $(VENV_ASAN)/bin/python soak/guided.py $(ARGS)

guards: $(VENV)/.installed ## take each guard out, and see its tests fail (half an hour)
	$(VENV)/bin/python soak/guards.py $(ARGS)

soak: $(VENV)/.installed ## shake everything for twenty minutes (ARGS=--short for two)
	$(VENV)/bin/python soak/run.py $(ARGS)

bench: $(VENV)/.installed ## compare JAX, jaxmarshal and the floor (see bench/README.md)
	mkdir -p build
	$(VENV)/bin/python -m jaxmarshal bench --json build/bench.json --html build/bench.html $(ARGS)

programs: $(VENV_PROGRAMS)/.installed ## run loops of flax, equinox and others with JAX and with jaxmarshal
	mkdir -p build
	$(VENV_PROGRAMS)/bin/python bench/programs/run.py --json build/programs.json $(ARGS)

docs: $(VENV)/.installed ## build the documentation into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --quiet --strict $(ARGS)
	@echo 'The site: build/site/index.html'

pages: $(VENV)/.installed ## open the documentation and what commands write in a browser (Chromium)
	$(VENV)/bin/python -m pytest tests/whole/test_site.py $(ARGS)
	$(VENV)/bin/python -m pytest tests/commands/test_compare.py tests/commands/test_bench.py -k page $(ARGS)

dist: $(VENV_CI)/.installed ## build source archive and wheel into dist/, check them, try them
	$(VENV_CI)/bin/nox -s dist

lint: $(VENV)/.installed ## check style, types, and stubs against the built modules
	$(VENV)/bin/ruff check .
	PATH="$(abspath $(VENV)/bin):$$PATH" cython-lint marshal  # it calls a program beside it
	$(VENV)/bin/mypy
	$(if $(STUBBED),$(VENV)/bin/stubtest $(STUBTEST) $(STUBBED),@echo "stubtest: no stubs yet")

clean: ## remove what the targets above have made, environments included
	rm -rf build dist .nox .venv .venv-debug .venv-asan .venv-ci .venv-programs
	rm -rf .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf marshal/jaxmarshal.egg-info $(addsuffix /*.so,$(ROOMS))
	find marshal tests bench demo examples soak docs .ci -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments. Each is made once; where a source is newer than its stamp, pip runs again.
%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "jaxmarshal needs Python 3.11 or newer; name one with PYTHON=" >&2; exit 1; }
	$(PYTHON) -m venv $*

$(VENV)/.installed: $(COMPILED) | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(VENV_DEBUG)/.installed: $(PACKAGED) | $(VENV_DEBUG)/bin/python
	JAXMARSHAL_BUILD=debug $(VENV_DEBUG)/bin/python -m pip install --quiet '.[test,examples]'
	touch $@

$(VENV_ASAN)/.installed: $(PACKAGED) | $(VENV_ASAN)/bin/python
	JAXMARSHAL_BUILD=asan $(VENV_ASAN)/bin/python -m pip install --quiet '.[test,examples,fuzz]'
	touch $@

$(VENV_PROGRAMS)/.installed: $(COMPILED) | $(VENV_PROGRAMS)/bin/python
	$(VENV_PROGRAMS)/bin/python -m pip install --quiet --editable '.[programs]'
	touch $@

$(PLUGIN): tests/harness/plugin.py | $(VENV)/.installed
	$(VENV)/bin/python $< $(@D)

$(COVERAGE): soak/coverage.c
	mkdir -p $(@D)
	$(CC) -O2 -shared -fPIC -o $@ $<

$(VENV_CI)/.installed: | $(VENV_CI)/bin/python
	$(VENV_CI)/bin/python -m pip install --quiet nox
	touch $@
