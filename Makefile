# Every target sets up what it needs; `make help` lists them. Nothing but Python 3.11+ with pip is expected.

PYTHON ?= python3
PYTHON312 ?= python3.12
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# In a terminal pip shows its own progress; elsewhere it says nothing but errors.
QUIET := $(shell test -t 2 || echo --quiet)
PIP := $(BIN)/python -m pip install $(QUIET) --disable-pip-version-check -c constraints.txt
# Some hundred processes start: what they import is compiled once, also where bytecode is not to be kept.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -q
# One file of tests is one process's: its fixtures are made once. Long files begin first (tests/conftest.py). There is a
# process more than cores, because some tests wait; where servers run, tests wait for them half of their time.
PARALLEL := -n $(shell expr $(shell nproc) + 1) --maxprocesses 8 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder
CROWDED := -n $(shell expr $(shell nproc) + 2) --maxprocesses 8 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder
# What runs for minutes on purpose. Elsewhere ten minutes are a hang (pyproject.toml).
PATIENT := --timeout=3600 -o faulthandler_timeout=7200
# A warning ends it: a link or an anchor that leads nowhere, a page that the navigation lacks. (--quiet would hide it.)
SITE := NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m mkdocs build --strict
TOOLS := install-peers install-servers install-slurm

.PHONY: help setup optional servers demo posttraining ui soak test test-python test-all test-times test-full test-ceph test-gpu mutants check lint collected fetched $(TOOLS) ci nightly screenshots prove prove-clusters prove-trainings prove-robots prove-datasets campaign oracles fuzz bench bench-node media docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## the environment .venv, from constraints.txt

$(READY): pyproject.toml constraints.txt loader/native/_native.c loader/native/blake2b.h loader/native/copies.h loader/native/crc32c.h loader/native/keys.h loader/native/resample.h loader/native/sha256.h loader/native/tar.h
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11, 4) or sys.exit(f"penstock needs Python 3.11.4 or newer, {sys.executable} is {v[0]}.{v[1]}.{v[2]}; run: make PYTHON=/path/to/python3.11")'
	@echo "Setting up $(VENV), about two minutes the first time. 1 of 3: the virtual environment"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip uninstall --quiet --quiet --yes penstock # the name of this package before, and another project's
	@echo "2 of 3: torch 2.13.0"
	@$(PIP) $(PIP_MORE) torch==2.13.0
	@echo "3 of 3: penstock, Dagster and $$(grep -c == constraints.txt) pinned packages; the C extension is compiled"
	@$(PIP) $(PIP_MORE) -e '.[dev]'
	@touch $@
	@echo "Set up: $(VENV)"

demo: $(READY) ## the main job on real media, into demo/; SOURCE=<folder or URL> takes your own, CLUSTER=<file> a cluster
	@$(BIN)/python -m examples.demo $(if $(SOURCE),--source '$(SOURCE)') $(if $(CLUSTER),--cluster '$(CLUSTER)') \
	    $(if $(MAX_REJECT_RATE),--max-reject-rate $(MAX_REJECT_RATE)) \
	    $(if $(MAX_NOT_MEDIA_RATE),--max-not-media-rate $(MAX_NOT_MEDIA_RATE))

posttraining: $(READY) ## a small transformer learns sums by GRPO, killed ten times, and trains the same steps again; into demo/sums
	@rm -rf demo/sums
	@$(BIN)/python -m examples.rl.arithmetic walk --out demo/sums --kills $(or $(KILLS),10)

media: ## only fetch the demo's real media, into demo/media
	@$(PYTHON) -m examples.media --into demo/media --cache media-cache

fetched: # The demo fetches again what does not come, and stops without photos.
	@-$(MAKE) media

ui: $(READY) ## Dagster at http://127.0.0.1:3000 over the demo's root; PORT=<port> takes another port
	@$(BIN)/python -m examples.demo.ui $(if $(PORT),--port '$(PORT)')

test: $(READY) ## the fast tests that need nothing but pip: three quarters of all, in less than five minutes
	$(PYTEST) $(PARALLEL) --hypothesis-profile fast -m 'not slow and not server and not slurm and not ray and not k8s and not ceph and not mutants and not oracle and not gpu'

test-python: $(READY) ## the same tests without the C extension, as where no compiler was
	PENSTOCK_NATIVE=0 $(MAKE) test

test-all: $(READY) ## every test that needs nothing but pip (half an hour of two cores)
	$(PYTEST) $(PARALLEL) -m 'not server and not slurm and not ray and not k8s and not ceph and not mutants and not oracle and not gpu'

test-times: $(READY) servers ## measure the tests, and write tests/slow.txt anew
	rm -rf .test-times && mkdir -p .test-times
	TEST_TIMES=$(CURDIR)/.test-times $(PYTEST) $(CROWDED) $(PATIENT) -p tests.times -m 'not ceph and not mutants and not oracle and not gpu'
	$(BIN)/python tests/times.py .test-times

test-full: optional servers ## the tests that run small in CI (marked at_scale), at their full size
	PENSTOCK_FULL=1 $(PYTEST) $(CROWDED) $(PATIENT) -m 'at_scale and not ceph and not mutants and not oracle and not gpu'

test-ceph: oracles ## the tests of stores, registered tars and formats in buckets against Ceph, from Debian's packages
	scripts/install-ceph.sh
	$(PYTEST) $(PATIENT) tests/storage tests/oracles tests/penstock/formats tests/assets/ingest -m ceph

test-gpu: $(READY) ## the tests that need an NVIDIA GPU (with torch's build for it in .venv): one is enough
	$(BIN)/python -c 'import torch; torch.cuda.is_available() or exit(f"torch {torch.__version__} sees no GPU here")'
	$(PYTEST) tests/run tests/compute tests/assets/featurizers tests/penstock/checkpoints tests/test_training_page.py -m gpu

ORACLES := $(basename $(notdir $(wildcard tests/oracles/*.txt)))

# torch comes first, where pins name it, with what it needs: the libraries' own requirements are gigabytes that no test uses.
oracles: $(READY) ## formats and datasets beside their own libraries, each in an environment in .oracles
	@for name in $(ORACLES); do pins=tests/oracles/$$name.txt; python='$(PYTHON)'; \
	    ! grep -q 'Python 3.12' $$pins || python='$(PYTHON312)'; \
	    test -x .oracles/$$name/bin/python || $$python -m venv .oracles/$$name || exit 1; \
	    ! grep -q torch==2.13.0 $$pins || .oracles/$$name/bin/python -m pip install --quiet torch==2.13.0 || exit 1; \
	    .oracles/$$name/bin/python -m pip install --quiet --no-deps -r $$pins || exit 1; done
	$(PYTEST) $(PATIENT) -m 'oracle and not ceph' $(ORACLES:%=tests/oracles/test_%_oracle.py) \
	    $(if $(filter mds,$(ORACLES)),tests/oracles/test_streaming_order.py \
	        $(if $(filter webdataset,$(ORACLES)),tests/oracles/test_tars_to_mds.py)) \
	    $(if $(filter lerobot06,$(ORACLES)),$(if $(filter policies,$(ORACLES)),tests/oracles/test_robots_walk.py))

optional: $(READY) # what some tests import, beside the environment
	$(PIP) $(PIP_MORE) --no-build-isolation -e '.[models,frameworks,jax,ray,k8s,mlflow,wandb,tensorboard]' kubernetes-validate kubeflow-trainer-api

test-long: optional servers ## the tests and cases that CI leaves out: those of 8 s or more (tests/nightly.txt), and marked cases
	$(PYTEST) $(CROWDED) $(PATIENT) -m 'nightly and not ceph and not mutants and not oracle and not gpu'

mutants: $(READY) ## bugs planted in the text of the loader, each of which a test must catch (minutes)
	$(PYTEST) $(PARALLEL) --dist load -m mutants $(or $(PLANTED),tests)

docs: $(READY) ## the documentation as a site, into site/ (open site/index.html)
	$(SITE)

screenshots: $(READY) ## the pictures of the documentation, into docs/images; look at each before you commit it (2 minutes)
	scripts/install-servers.sh
	$(BIN)/python -m scripts.screenshots $(NAMES)

check: lint docs ## lint, types, architecture, the documentation's links
	$(PYTEST) tests/test_architecture.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config layers.toml --no-cache >/dev/null || $(BIN)/lint-imports --config layers.toml --no-cache

IN_CI := -m 'not nightly and not ceph and not mutants and not oracle and not gpu'

collected: $(READY) # Pytest rewrites each test file once: the processes of a fresh clone would all do so at the same time.
	@$(PYTEST) $(IN_CI) --collect-only > /dev/null

# Most modules that pip would compile are never imported.
ci: ## everything but nightly's long runs, as .ci/run calls it; of the planted bugs the sample of the day
	scripts/timed.sh "environment, peers and servers" $(MAKE) --jobs=4 --output-sync=target setup servers fetched PIP_MORE=--no-compile
	scripts/timed.sh "check and demo" $(MAKE) --jobs=4 --output-sync=target demo lint docs collected
	scripts/timed.sh "optional packages" $(MAKE) optional PIP_MORE=--no-compile
	scripts/timed.sh "tests" $(PYTEST) $(CROWDED) $(IN_CI) --durations=15
	scripts/timed.sh "planted bugs of the day, light formats' own libraries" $(MAKE) --jobs=2 --output-sync=target oracles mutants ORACLES=webdataset PLANTED='--planted-sample 12 tests/test_planted_bugs.py'

# A night of two cores holds a third of it. If one target fails, the others still run.
NIGHT_0 := test-python test-long mutants
NIGHT_1 := test-full prove prove-clusters prove-robots prove-datasets campaign fuzz
NIGHT_2 := prove-trainings soak bench
NIGHT ?= $(shell expr `date +%u` % 3)

nightly: ## a third of what takes hours, by the weekday (NIGHT=0, 1 or 2); 0: the tests without C, the long ones, all planted bugs; 1: those of two sizes in full, prove, lerobot, datasets of others, 5,000 worlds, fuzz; 2: a training with faults, soak, benchmarks
	@test -n "$(NIGHT_$(NIGHT))" || { echo 'NIGHT is $(NIGHT); it can be 0, 1 or 2'; exit 1; }
	$(MAKE) --keep-going $(NIGHT_$(NIGHT):%=nightly-%)

nightly-%: # with its time
	scripts/timed.sh "$*" $(MAKE) $*

prove: $(READY) ## the long check: the log's model, interleavings, kills, 400 worlds; the C extension sanitized, and on ARM (16 minutes of two cores)
	scripts/install-arm.sh
	PYTHONHASHSEED=0 $(BIN)/python tests/prove.py

prove-clusters: $(READY) ## the demo through Dagster on Slurm and on Ray, while nodes, heads, daemon, code server and runs are killed (20 minutes)
	scripts/install-servers.sh
	scripts/install-slurm.sh
	$(PIP) -e '.[ray]'
	for engine in slurm ray; do $(BIN)/python tests/clusters $$engine || exit 1; done

prove-trainings: $(READY) ## an hour of a training on Slurm with a fault a minute: every step that of an undisturbed one (MINUTES=5 for less)
	scripts/install-slurm.sh
	$(BIN)/python tests/trainings --minutes $(or $(MINUTES),60)

prove-robots: $(READY) ## LeRobot reads every window of our export, and its policies train on ours; real episodes (PENSTOCK_MEDIA, PYTHON312; 12 minutes)
	@test -d "$$PENSTOCK_MEDIA/robot" || { echo 'set PENSTOCK_MEDIA to the folder of real media: its robot/ has the episodes'; exit 1; }
	scripts/install-servers.sh
	$(MAKE) oracles ORACLES='lerobot06 policies'

prove-datasets: $(READY) ## datasets of torchvision, Hugging Face and Grain as sources, and a moved training that is killed (5 minutes)
	$(MAKE) oracles ORACLES=items

campaign: $(READY) ## 5,000 random worlds with faults, judged from docs/format.md alone (20 minutes of two cores; WORLDS=500 for less)
	$(BIN)/python tests/campaign --worlds $(or $(WORLDS),5000)

servers: $(TOOLS) ## what pip does not bring: ffprobe, exiftool and strace, Postgres, Chromium, axe-core, Azurite, Slurm

$(TOOLS):
	scripts/$@.sh

soak: $(READY) ## an hour of arrivals, bad files, kills and releases with the books kept (MINUTES=5 for less)
	scripts/install-servers.sh
	$(BIN)/python tests/soak --minutes $(or $(MINUTES),60) --postgres

fuzz: $(READY) ## 10,000 damaged files through audit, cutter and decoders, as many data sets in other formats through import and registration, and indexes through searches (CASES=500 for fewer)
	$(BIN)/python -m fuzz --cases $(or $(CASES),10000)
	$(BIN)/python -m fuzz --of formats --cases $(or $(CASES),10000)
	$(BIN)/python -m fuzz --of indexes --cases $(or $(CASES),10000)

bench: $(READY) ## the benchmarks, against peers in .peers; writes docs/benchmarks.md (35 minutes)
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks
	$(MAKE) bench-node

bench-node: $(READY) ## what comes as it is beside peers and bare loops on this machine's cores, into docs/benchmarks.md and README.md (BUDGET=600)
	$(BIN)/python -m benchmarks.peers grain webdataset spdl litdata streaming video
	$(BIN)/python -m benchmarks.node --seconds $(or $(BUDGET),600) --page

clean: ## remove the demo and every cache, keep .venv
	rm -rf demo media-cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
