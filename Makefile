# `make help` prints the targets: each `##` comment below.

PYTHON ?= python3
NODES  ?= 3
ROUNDS ?= 200
PRESET ?= byte-1m
ABUSE  ?=
WITH_METRICS ?=
WAN    ?=
SCIENCE ?=
BENCH  ?=
SEED   ?= 1
HOURS  ?= 24
EXCHANGE ?= star
SIMULATED ?= 1000
MINUTES ?= 10
FAILOVERS ?= 50
INPUTS ?= 1000000
EXAMPLE ?= byte_model
ADVERSARY ?=
PEERS  ?=
RELEASE ?=

VENV := .venv
BIN  := $(VENV)/bin
# images set it, and then each process of the tests compiles thinwire, and rewrites the tests, anew
unexport PYTHONDONTWRITEBYTECODE

STUBS := proto/thinwire_proto/wire/service_pb2.py

# before a command that is quiet for minutes: until its shell ends, a line each half minute says that it still works
TELL_TIME = s=0; while sleep 1 && kill -0 $$$$ 2>/dev/null; do \
	s=$$((s + 1)); [ $$((s % 30)) -ne 0 ] || echo "still installing, after $$s s"; done &

.PHONY: swarm test test-all test-compose release lint bench bench-wan bench-peers bench-adversary science fuzz abuse simulate chaos failovers proto dashboards screenshots example clean help

swarm: $(VENV)/.run  ## a coordinator and three nodes on this machine (NODES, ROUNDS, PRESET; EXCHANGE=gossip: a gossip run; WITH_METRICS=1: Prometheus too)
	@$(BIN)/python -m deploy.local_swarm --nodes $(NODES) --rounds $(ROUNDS) --preset $(PRESET) --exchange $(EXCHANGE) $(if $(WITH_METRICS),--metrics)

test: lint  ## lint and the quick tests: all but those of tests/slow.txt (PYTEST_ARGS)
	$(BIN)/pytest -n 3 --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-all: lint  ## lint and all tests; about 25 minutes on two cores (PYTEST_ARGS)
	$(BIN)/pytest -n 3 --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## ruff, mypy --strict, the import rules, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n 2
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.stubs --check
	$(BIN)/python -m deploy.dashboards --check
	$(BIN)/python -m tools.metrics_table --check
	$(BIN)/python -m tools.events_table --check
	$(BIN)/python -m tools.options_table --check
	$(BIN)/python -m tools.run_reference --check
	$(BIN)/python -m tools.planner_page --check

bench: $(VENV)/.run  ## bytes, speeds, rounds, memory, training beside baselines, speeds also beside busy processes; about 12 minutes (BENCH)
	@$(BIN)/python -m bench.speed $(BENCH)

bench-wan: $(VENV)/.run  ## a swarm and DistributedDataParallel over emulated slow links; needs root (WAN)
	$(BIN)/python -m bench.wide_area $(WAN)

bench-peers: $(VENV)/.run  ## other systems in their own code beside thinwire, over the same links; an hour; needs root (PEERS=--quick)
	$(BIN)/python -m bench.peers $(PEERS)

science: $(VENV)/.run  ## loss and bytes of all arms, side by side; days, resumed (SCIENCE=--quick: under 10 minutes)
	@$(BIN)/python -m bench.convergence $(SCIENCE)

simulate: $(VENV)/.run  ## a day of a thousand nodes under virtual time (SEED, HOURS, SIMULATED; EXCHANGE=gossip: a short gossip run)
	@PYTHONPATH=tests $(BIN)/python -m simulator --seed $(SEED) --hours $(HOURS) --nodes $(SIMULATED) --exchange $(EXCHANGE)

chaos: $(VENV)/.run  ## real processes killed at random (SEED, MINUTES)
	@PYTHONPATH=tests $(BIN)/python -m chaos --seed $(SEED) --minutes $(MINUTES)

failovers: $(VENV)/.run  ## the coordinator's machine lost with its disk, again and again (SEED, FAILOVERS)
	@PYTHONPATH=tests $(BIN)/python -m failovers --seed $(SEED) --count $(FAILOVERS)

fuzz: $(VENV)/.dev  ## everything that strangers send, damaged, in process and over the wire (INPUTS, MINUTES)
	PYTHONPATH=tests $(BIN)/python -m fuzz --inputs $(INPUTS) --minutes $(MINUTES)

abuse: $(VENV)/.dev  ## what attacks cost three honest nodes and the coordinator, into docs/abuse.md; about 20 minutes (ABUSE)
	PYTHONPATH=tests:. $(BIN)/python -m abuse --write $(ABUSE)

bench-adversary: $(VENV)/.run  ## hostile nodes, with trust and without; about 15 minutes (ADVERSARY=--quick: 3; EXCHANGE=gossip: one of four in a gossip run, 5)
	@$(BIN)/python -m bench.adversary$(if $(filter gossip,$(EXCHANGE)),.without_centre) $(ADVERSARY)

example: $(VENV)/.examples  ## one of examples/: 200 rounds with kills, checked, with curve and figures (EXAMPLE)
	@$(BIN)/python -m examples.$(EXAMPLE)

release: $(VENV)/.dev  ## sdist, wheel, image, SBOM and checksums into dist/, and a swarm from the wheel alone (RELEASE=--borrow: install no dependencies)
	@$(BIN)/python -m deploy.release $(RELEASE)

proto: $(VENV)/.dev  ## generate the gRPC stubs
	$(BIN)/python -m tools.stubs

screenshots: $(VENV)/.dev  ## take the pictures of the page for the docs; needs Chromium
	$(BIN)/python -m tools.screenshots

dashboards: $(VENV)/.dev  ## generate the Grafana dashboards
	$(BIN)/python -m deploy.dashboards

test-compose: $(VENV)/.dev  ## docker-compose.yml on a real engine, from build to verify; about 15 minutes
	$(BIN)/pytest -s --timeout 1800 tests/compose

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

clean:  ## remove .venv and runs
	rm -rf $(VENV) runs

$(VENV)/.venv: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "thinwire needs Python 3.10 or newer; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.11 …" or 0)'
	@echo "setting up $(VENV); this happens once"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.venv pyproject.toml
	@echo "installing thinwire and its dependencies: 2 to 10 minutes, most of them for PyTorch (on Linux up to 3 GB)"
	@$(TELL_TIME) $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing the dependencies of the tests: 1 to 5 minutes"
	@$(TELL_TIME) $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.examples: $(VENV)/.run
	@echo "installing the dependencies of the examples: 1 to 5 minutes"
	@$(TELL_TIME) $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[data,hf,lora,bench]'
	@touch $@
