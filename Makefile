# `make` alone prints what there is. Every target sets up what it needs in $(VENV) by itself.
#   PYTHON=/path/to/python3.12   the Python to create $(VENV) with (3.11 or newer)
#   VENV=/elsewhere              another place for the virtual environments ($(VENV)-3.5: that of PySpark 3.5)
#   CI_FULL=1                    the long tests as well
#   SKIP_KAFKA=1                 no tests on a Kafka broker, where Maven Central cannot be reached

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON_FLOOR := 3.11
JAVA_FLOOR := 17
VENV ?= .venv
# The first on the PATH that is new enough; a plain `python3` may well be older.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

PY := $(VENV)/bin/python
OLDER := $(patsubst tests/older/%.txt,$(VENV)-%,$(wildcard tests/older/*.txt))
SOURCES := pyproject.toml setup.cfg $(wildcard native/*.c native/*.h)
# Not exported by default: a Python on the machine must not leak into the virtual environment.
unexport PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Stops with one line where $(1) printed anything.
stop_on = $(eval PROBLEM := $(shell $(1)))$(if $(PROBLEM),$(error $(PROBLEM)))

python_problem = p='$(PYTHON)'; \
	if [ -z "$$p" ]; then \
		echo 'Python $(PYTHON_FLOOR) or newer is needed and none was found: install it, or name it with PYTHON=/path/to/python'; \
	elif ! v=$$("$$p" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then \
		echo "PYTHON=$$p does not run: name a Python $(PYTHON_FLOOR) or newer"; \
	elif ! "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "Python $(PYTHON_FLOOR) or newer is needed and $$p is $$v: install it, or name it with PYTHON=/path/to/python"; \
	elif ! "$$p" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$$p cannot create virtual environments: install its venv module (Debian and Ubuntu: apt install python$$v-venv)"; \
	fi

# Spark itself takes JAVA_HOME before the PATH.
java_problem = h='$(JAVA_HOME)'; j="$${h:+$$h/bin/}java"; \
	v=$$("$$j" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1); \
	if [ -z "$$v" ] && [ -n "$$h" ]; then \
		echo "JAVA_HOME=$$h holds no working Java: point it to a JDK $(JAVA_FLOOR) or newer"; \
	elif [ -z "$$v" ]; then \
		echo 'Java $(JAVA_FLOOR) or newer is needed and none was found: install a JDK (Debian and Ubuntu: apt install openjdk-17-jdk-headless)'; \
	elif [ "$$v" -lt $(JAVA_FLOOR) ]; then \
		echo "Java $(JAVA_FLOOR) or newer is needed and $$j is $$v: install a JDK, or point JAVA_HOME to one"; \
	fi

.PHONY: help
help: ## print this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: java $(VENV)/.ready-test ## de-duplicate a made-up stream and check every figure (under two minutes)
	@$(PY) -m dedup.cli.main demo $(DEMO_ARGS)

.PHONY: demo-kafka
demo-kafka: java $(VENV)/.ready-test ## Kafka to Kafka on a real broker, the query killed three times (two minutes; tests/kafka/demo)
	@$(PY) -m tests.kafka.demo $(DEMO_ARGS)

.PHONY: demo-postgres
demo-postgres: java $(VENV)/.ready-test ## Kafka to PostgreSQL, the query killed three times, the server restarted (two minutes; tests/kafka/demo)
	@$(PY) -m tests.kafka.demo --sink postgres $(DEMO_ARGS)

.PHONY: demo-mysql
demo-mysql: java $(VENV)/.ready-test ## Kafka to MariaDB, the query killed three times, the server restarted (two minutes; tests/kafka/demo)
	@$(PY) -m tests.kafka.demo --sink mysql $(DEMO_ARGS)

# The three workers also wait for Spark, servers and disks. tests/conftest.py has the groups.
PARALLEL := --numprocesses 3 --dist loadgroup --no-loadscope-reorder --durations 30

.PHONY: test
test: java $(VENV)/.ready-test ## run the tests (twenty minutes on two idle cores); CI_FULL=1 adds the long ones
	@$(PY) -m pytest tests $(PARALLEL) $(TEST_ARGS)

# What touches Spark, pandas and pyarrow: the rule, types, formats on disk, restarts, a run of the command.
TESTS_4.0 := $(patsubst %,tests/spark/test_operator_%.py,semantics types restart) tests/spark/test_golden.py \
	tests/spark/test_rebuild.py::test_queries_judge_as_one_query_that_was_never_rebuilt \
	tests/spark/test_bootstrap.py::test_the_query_judges_as_if_it_had_received_history_in_order
TESTS_3.5 := $(TESTS_4.0) $(patsubst %,tests/spark/test_%.py,operator_pack operator_checks sequence_operator files record_id values \
	cli_order cli_tune cli_check dedup_folder side_effects) tests/spark/test_cli_run.py::test_input_of_every_format_is_deduplicated \
	$(patsubst %,tests/unit/test_%.py,daemon keycolumn keys rowhash sources files_scan files_write catalog_root \
	catalog_store kafka_source_json segment_store)

.PHONY: test-older
test-older: test-3.5 test-4.0 ## the operator's tests on older PySparks, and the oldest pandas and pyarrow (ten minutes)

.PHONY: test-3.5 test-4.0
test-3.5 test-4.0: test-%: java $(VENV)-%/.ready-test
	@$(VENV)-$*/bin/python -m pytest $(TESTS_$*) $(PARALLEL) $(TEST_ARGS)

.PHONY: test-lakehouse
test-lakehouse: java $(VENV)-4.1/.ready-test ## Delta Lake's and Iceberg's own connectors, on the PySpark that has both (10 minutes)
	@$(VENV)-4.1/bin/python -m pytest tests/lakehouse/native --timeout 900 $(TEST_ARGS)

.PHONY: lint
lint: $(VENV)/.ready-test $(VENV)/.ready-lint ## ruff, strict mypy, the layers, the size, and the C code with warnings as errors
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) -m tests.support.statements
	@mkdir -p build/lint
	for c in native/*.c; do \
		$(CC) -std=c11 -O2 -Wall -Wextra -Werror -fPIC -DPy_LIMITED_API=0x030B0000 \
			-I"$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
			-c "$$c" -o "build/lint/$$(basename "$$c" .c).o" || exit 1; \
	done

.PHONY: bench
bench: java $(VENV)/.ready-bench ## side-by-side benchmarks against Spark's built-ins, Delta, Flink, DuckDB and Polars (hours)
	@$(PY) -m pytest benchmarks/bench_kernel.py benchmarks/bench_pack.py --timeout=0 $(BENCH_ARGS)
	@$(PY) -m benchmarks.pipelines --batches 12
	@$(PY) -m benchmarks.pipelines --batches 12 --rows 300000 --shape kafka --name pipelines-kafka
	@$(PY) -m benchmarks.pipelines --batches 12 --rows 300000 --shape wide --name pipelines-wide
	@$(PY) -m benchmarks.runs
	@$(PY) -m benchmarks.runs --rows 100000 --shape kafka
	@$(PY) -m benchmarks.runs --rows 100000 --shape wide
	@$(PY) -m benchmarks.small
	@$(PY) -m benchmarks.parsing
	@$(PY) -m benchmarks.sweeps duplicates
	@$(PY) -m benchmarks.starts
	@$(PY) -m benchmarks.lines

.PHONY: bench-scale
bench-scale: java $(VENV)/.ready-bench ## up to 100 M live IDs, pauses, sweeps, other partitions and shards, the simulator (2 hours)
	@$(PY) -m benchmarks.scale --live 100
	@$(PY) -m benchmarks.scale --live 100 --work /dev/shm --name scale-in-memory
	@$(PY) -m benchmarks.pipelines --batches 33 --driver-memory 14g --name pipelines-30m --only dedup_by_id --only HDFS
	@$(PY) -m benchmarks.cold
	@$(PY) -m benchmarks.pauses
	@$(PY) -m benchmarks.sweeps shards hot sizing arrow
	@$(PY) -m benchmarks.cores
	@$(PY) -m benchmarks.partitions
	@$(PY) -m benchmarks.rebuild
	@$(PY) -m benchmarks.bootstrap --live 3 30 100
	@$(PY) -m benchmarks.cap
	@$(PY) -m benchmarks.filter_state
	@$(PY) -m benchmarks.simulate check
	@$(PY) -m benchmarks.simulate plan --shards 256
	@$(PY) -m benchmarks.simulate plan --shards 64
	@$(PY) -m benchmarks.simulate plan --shards 32

.PHONY: bench-sizing
bench-sizing: $(VENV)/.ready-test ## filters alone against pybloom-live: rates x buckets x IDs (3 minutes)
	@$(PY) -m pytest benchmarks/bench_sizing.py --timeout=0 --benchmark-columns=median,rounds $(BENCH_ARGS)
	@$(PY) -m benchmarks.sizing
	@$(PY) -m benchmarks.tables

.PHONY: bench-kafka
bench-kafka: java $(VENV)/.ready-bench ## the Kafka sink against Spark's own, alone and end to end (6 minutes)
	@$(PY) -m benchmarks.kafka $(BENCH_ARGS)

.PHONY: bench-postgres
bench-postgres: java $(VENV)/.ready-bench ## the PostgreSQL sink against bare COPY and Spark's JDBC (6 minutes)
	@$(PY) -m benchmarks.postgres $(BENCH_ARGS)

.PHONY: bench-files
bench-files: java $(VENV)/.ready-bench ## the file sink against Spark's own (5 minutes)
	@$(PY) -m benchmarks.files $(BENCH_ARGS)

.PHONY: pictures
pictures: java $(VENV)/.ready-test ## draw the pictures of the documentation anew, from a real run (3 minutes)
	@$(PY) -m benchmarks.pictures

.PHONY: sanitize
sanitize: $(VENV)/.ready-test ## kernel tests under the address and undefined-behaviour sanitizers
	@PYTHON="$(abspath $(PY))" sh native/sanitize.sh

.PHONY: damage
damage: $(VENV)/.ready-test ## damage every kind of file in every way and print what came of it (3 minutes)
	@DAMAGE_TABLE=1 $(PY) -m pytest tests/damage -m "slow or not slow" --ignore=tests/damage/test_damage_end_to_end.py $(DAMAGE_ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.ready-test ## random inputs to every decoder; FUZZ_ARGS="--minutes 10 --sanitize"
	@PYTHON="$(abspath $(PY))" $(PY) -m tests.damage.fuzz $(FUZZ_ARGS)

.PHONY: faults
faults: java $(VENV)/.ready-test ## kill a real query 1,000 times and compare with the truth (hours); FAULTS_ARGS="--kills 50"
	@$(PY) -m tests.faults.harness --kills 1000 $(FAULTS_ARGS)

.PHONY: faults-sequences
faults-sequences: java $(VENV)/.ready-test ## kill queries of dedup_by_sequence 30 times at each step (half an hour); FAULTS_ARGS="--each 3"
	@$(PY) -m tests.faults.harness --numbered --kills 1 --each 30 $(FAULTS_ARGS)

.PHONY: faults-kafka
faults-kafka: java $(VENV)/.ready-test ## kill the Kafka sink 30 times at each step over a real broker (25 minutes); FAULTS_ARGS="--each 2"
	@$(PY) -m tests.kafka.campaign --each 30 $(FAULTS_ARGS)

.PHONY: faults-postgres
faults-postgres: $(VENV)/.ready-test ## kill the PostgreSQL sink 30 times at each step over a real server (fifteen minutes); FAULTS_ARGS="--each 2"
	@$(PY) -m tests.databases.campaign postgres --each 30 $(FAULTS_ARGS)

.PHONY: faults-mysql
faults-mysql: java $(VENV)/.ready-test ## kill the MySQL sink 30 times at each step over a real server (ten minutes); FAULTS_ARGS="--each 2"
	@$(PY) -m tests.databases.campaign mysql --each 30 $(FAULTS_ARGS)

.PHONY: faults-redis
faults-redis: $(VENV)/.ready-test ## kill sinks into Redis 30 times at each step over a real server (five minutes); FAULTS_ARGS="--each 2"
	@$(PY) -m tests.redis.campaign --each 30 $(FAULTS_ARGS)

.PHONY: faults-kit
faults-kit: $(VENV)/.ready-test ## kill sinks of the kit 30 times at each step over SQLite and a file (ten minutes); FAULTS_ARGS="--each 2"
	@$(PY) -m tests.kit.campaign --each 30 $(FAULTS_ARGS)

.PHONY: faults-files
faults-files: $(VENV)/.ready-test ## kill the file sink 30 times at each step on a local disk and on S3 (fifteen minutes); FAULTS_ARGS="--each 2"
	@$(PY) -m tests.files_sink.campaign --each 30 $(FAULTS_ARGS)

.PHONY: faults-lakehouse
faults-lakehouse: $(VENV)/.ready-test ## kill the lakehouse sinks 30 times at each step over real tables (half an hour); FAULTS_ARGS="--each 2"
	@$(PY) -m tests.lakehouse.campaign --each 30 $(FAULTS_ARGS)

.PHONY: model
model: $(VENV)/.ready-test ## 100,000 random steps of crashes, copies and damage against an oracle (half an hour)
	@$(PY) -m tests.model.walk $(MODEL_ARGS)

.PHONY: mutants
mutants: $(VENV)/.ready-test ## break the source on purpose, one place at a time: every defect must be caught
	@$(PY) -m tests.mutants.run $(MUTANTS_ARGS)

.PHONY: wheel
wheel: ## build the sdist and the wheels of the last commit into dist/, and check them (a minute)
	$(call environment,$(VENV))
	@$(PY) -m pip install --quiet abi3audit auditwheel build twine ziglang
	@$(PY) native/release.py

.PHONY: clean
clean: ## remove all that make made, the virtual environments included
	rm -rf .venv .venv-* build dist *.egg-info dedup/kernel/_native*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache \
		.benchmarks spark-warehouse metastore_db derby.log artifacts
	find dedup tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: java
java:
	@$(call stop_on,$(java_problem)):

# A virtual environment in $(1). One whose Python or pip is gone is made afresh.
define environment
@$(if $(shell $(1)/bin/python -m pip --version 2>/dev/null),,$(call stop_on,$(python_problem))):
@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { \
	echo "Creating $(1) with $(PYTHON)"; "$(PYTHON)" -m venv --clear "$(1)"; }
endef

# A stamp is as new as the last install.
$(OLDER:%=%/.ready-test): $(VENV)-%/.ready-test: tests/older/%.txt
$(OLDER:%=%/.ready-test): CONSTRAINT = --constraint tests/older/$(@D:$(VENV)-%=%).txt
$(VENV)/.ready-test $(OLDER:%=%/.ready-test): $(SOURCES)
	$(call environment,$(@D))
	@echo "Installing into $(@D) (the first time takes a few minutes)"
	@$(@D)/bin/python -m pip install --quiet --editable ".[test]" $(CONSTRAINT)
	@touch $@

$(VENV)/.ready-bench: pyproject.toml $(VENV)/.ready-test
	@$(PY) -m pip install --quiet --editable ".[bench]"
	@touch $@

$(VENV)/.ready-lint: pyproject.toml $(VENV)/.ready-test
	@$(PY) -m pip install --quiet --editable ".[lint]"
	@touch $@
