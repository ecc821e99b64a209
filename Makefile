# The first three commands of the README. Everything lives in .venv; nothing else on the machine is touched.
.PHONY: demo serve test check bench clean

# Processes that the tests run in; the tests of a file stay together and share its servers.
WORKERS ?= 2

demo: .venv/ready        ## start a server, ask it, stream the answer, stop it
	@.venv/bin/python examples/demo.py

serve: .venv/ready       ## leave a server running on port 8000
	@.venv/bin/octavo serve

test: .venv/ready-test   ## the test suite
	@.venv/bin/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: .venv/ready-test  ## format, lint, types, import contracts, line counts
	@scripts/check

bench: .venv/ready       ## the CPU workloads of benchmarks/
	@.venv/bin/octavo bench throughput --workload all

.venv/ready: pyproject.toml constraints.txt scripts/setup
	@scripts/setup

.venv/ready-test: pyproject.toml constraints.txt scripts/setup
	@scripts/setup test

clean:
	rm -rf .venv
