# make swarm   a coordinator and three nodes on this machine, with a live view and a summary; WITH_METRICS=1: Prometheus
# make test    lint and tests
# make lint    ruff, mypy --strict, the import rules, generated code up to date
# make bench   how small, how fast, how soon and how lean, beside baselines; under 5 minutes (BENCH=--full: more)
# make fuzz   the payload codec against a million damaged inputs; about 10 minutes (INPUTS)
# make simulate   a day of a thousand nodes under virtual time (SEED, HOURS, SIMULATED)
# make chaos   real processes killed at random (SEED, MINUTES)
# make bench-wan   a swarm beside DistributedDataParallel over emulated slow links; as root
# make bench-staleness   what stale gradients cost, and what looking ahead mends; about 15 minutes
# make science   how close to AdamW low bandwidth gets: arms side by side; hours (SCIENCE=--quick: under 10 minutes)
# make screenshots   pictures of the page for the README, from a swarm that runs; needs Chromium
# make test-compose   docker-compose.yml on a real engine, from build to verify; about 15 minutes
# make proto   write the gRPC stubs anew
# make dashboards   write Grafana's dashboards anew
PYTHON ?= python3
NODES  ?= 3
ROUNDS ?= 200
PRESET ?= byte-1m
WITH_METRICS ?=
WAN    ?=
SCIENCE ?=
BENCH  ?=
SEED   ?= 1
HOURS  ?= 24
SIMULATED ?= 1000
MINUTES ?= 10
INPUTS ?= 1000000

VENV := .venv
BIN  := $(VENV)/bin
STUBS := proto/thinwire_proto/wire/service_pb2.py

.PHONY: swarm test test-compose lint bench bench-wan bench-staleness science fuzz simulate chaos proto dashboards screenshots clean

swarm: $(VENV)/.run
	@$(BIN)/python -m deploy.local_swarm --nodes $(NODES) --rounds $(ROUNDS) --preset $(PRESET) $(if $(WITH_METRICS),--metrics)

test: lint
	$(BIN)/pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy -p deploy -p bench -p tools
	$(BIN)/mypy tests
	$(BIN)/mypy examples
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.stubs --check
	$(BIN)/python -m deploy.dashboards --check
	$(BIN)/python -m tools.metrics_table --check

bench: $(VENV)/.bench
	@$(BIN)/python -m bench.speed $(BENCH)

bench-wan: $(VENV)/.bench
	$(BIN)/python -m bench.wide_area $(WAN)

science: $(VENV)/.bench
	@$(BIN)/python -m bench.convergence $(SCIENCE)

simulate: $(VENV)/.run
	@PYTHONPATH=tests $(BIN)/python -m simulator --seed $(SEED) --hours $(HOURS) --nodes $(SIMULATED)

chaos: $(VENV)/.run
	@PYTHONPATH=tests $(BIN)/python -m chaos --seed $(SEED) --minutes $(MINUTES)

fuzz: $(VENV)/.run
	PYTHONPATH=tests $(BIN)/python -m fuzz --inputs $(INPUTS)

bench-staleness: $(VENV)/.run
	$(BIN)/python -m bench.convergence.staleness

proto: $(VENV)/.dev
	$(BIN)/python -m tools.stubs

screenshots: $(VENV)/.dev
	$(BIN)/python -m tools.screenshots

dashboards: $(VENV)/.dev
	$(BIN)/python -m deploy.dashboards

test-compose: $(VENV)/.dev
	$(BIN)/pytest -s --timeout 1800 tests/compose

clean:
	rm -rf $(VENV) runs

$(VENV)/.venv: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "thinwire needs Python 3.10 or newer; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.11 …" or 0)'
	@echo "setting up $(VENV); this is done once"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.venv pyproject.toml
	@echo "installing what thinwire needs"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing what its tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.run
	@echo "installing what its plots need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@
