# Two commands do everything on a fresh machine:
#
#   make accept                                          judge this machine
#   make accept HOSTS=nodes.txt ARGS="--workload nodes"  judge the nodes of a hosts file
#   make test                                            test the tester (Linux; the lab needs root)
#
# and: make timing (tests that need a quiet machine); make long (tests that take minutes); make faults (the catalogue
# of faults: hours; ARGS="-k link"); make chaos (random faults: ARGS="--minutes 5 --seed 1"); make fuzz (properties, ten
# times as hard); make gpu (what one GPU shows of the tester: ten minutes); make versions (the suite on older versions of torch); make lint; make lab
# ARGS="--nodes 4 --rate 200mbit"; make setup; make clean; make begin (a red report in the place of the last one,
# which make accept leaves first).
#
# Set-up happens when it is needed and costs nothing afterwards. `make` turns every exit status but 0 into
# 2; a CI server that wants the status itself calls `make begin setup` and then `.venv/bin/pytest suites/ ...`.

HOSTS    =
ARGS     =
PYTHON   =
VERSIONS = 2.10.0

# What pytest is told. HOSTS=$NODES with nothing in NODES names no node, and must not mean this machine.
TOLD = $(if $(filter-out file,$(origin HOSTS)),--hosts '$(HOSTS)') $(ARGS)

SHELL       = /bin/sh
.SHELLFLAGS = -eu -c
.ONESHELL:
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: begin help accept test long timing faults chaos fuzz gpu versions setup lint lab licences clean

BIN      = .venv/bin
CHECKED  = conftest.py fixtures suites thresholds reports tests
COMMANDS = sshd ssh ip tc bridge unshare nsenter setpriv mount chromium
PACKAGES = openssh-server openssh-client iproute2 util-linux mount chromium

accept: begin .venv/.run ## judge this machine, or the nodes of a hosts file: HOSTS=nodes.txt
	@$(BIN)/pytest suites/ $(TOLD)

# Before the set-up, which may fail: a red report in the place of the last one. Any Python can do that. Status 4 says
# that the place is held or of no use; any other, that this Python could not do it, or that there is none.
begin: ## leave a red report in the place of the last one
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do
	    command -v "$$python" >/dev/null || continue
	    status=0
	    "$$python" -m reports.begin $(TOLD) || status=$$?
	    case $$status in 0|4) exit $$status;; esac
	done

# Linters and types are tests too (tests/test_house.py).
test: .venv/.lab ## test the tester (Linux; the lab needs root)
	@$(if $(ARGS),exec $(BIN)/pytest tests/ -m 'not quiet and not long' $(ARGS))
	exec $(BIN)/python -m tests.parts

long: .venv/.lab ## tests that take minutes
	@$(BIN)/pytest tests/ -m 'long and not quiet and not catalogue' $(ARGS)

timing: .venv/.lab ## tests that need a quiet machine
	@$(BIN)/pytest tests/ -m quiet $(ARGS)

faults: .venv/.lab ## the catalogue of planted faults: hours, ARGS="-k link"
	@$(BIN)/pytest tests/faults -m catalogue $(ARGS)

chaos: .venv/.lab ## random faults for five minutes: ARGS="--minutes 5 --seed 1"
	@$(BIN)/python -m tests.chaos $(ARGS)

fuzz: .venv/.test ## every property ten times as hard: ARGS="-k hosts"
	@$(BIN)/pytest tests/ -m hypothesis --hypothesis-profile fuzz $(ARGS)

gpu: .venv/.test ## ten minutes on one GPU, with evidence: ARGS=DIRECTORY
	@$(BIN)/python -m tests.gpu $(ARGS)

# The oldest that nodes may have is OLDEST_TORCH in fixtures/cluster/preflight.py.
versions: .venv/.run ## the suite on versions of torch that nodes may have: gigabytes each, VERSIONS="2.10.0 2.12.0"
	@for version in $(VERSIONS); do
	    python=.venv/torch/$$version/bin/python
	    if [ ! -e ".venv/torch/$$version/.made" ]; then
	        $(BIN)/python -m venv --clear ".venv/torch/$$version"
	        "$$python" -m pip install --quiet "torch==$$version"
	        touch ".venv/torch/$$version/.made"
	    fi
	    $(BIN)/pytest suites/ --remote-python "$$PWD/$$python" $(TOLD)
	done

lint: .venv/.test ## linters and types
	@$(BIN)/ruff check --quiet $(CHECKED)
	$(BIN)/ruff format --quiet --check $(CHECKED)
	$(BIN)/mypy --no-error-summary

lab: .venv/.lab ## a cluster on this machine: ARGS="--nodes 4 --rate 200mbit"
	@$(BIN)/python -m tests.lab up $(ARGS)

setup: .venv/.run ## install what the suite needs into .venv

licences: .venv/.run ## the licences of what is installed in .venv
	@$(BIN)/python -c "$$LICENCES"

clean: ## remove what was made here, but not the runs (reports/runs)
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## list what can be made
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r target what; do printf '%-13s %s\n' "$$target" "$$what"; done

# as_root COMMAND...: run it as root, or say what has to be run.
define AS_ROOT
as_root() {
    if [ "$$(id -u)" = 0 ]; then "$$@" </dev/null
    elif sudo -n true 2>/dev/null; then sudo -n "$$@" </dev/null
    else echo "make: this needs root; run it yourself, then call make again: sudo $$*" >&2; exit 1
    fi
}
install_debian() {
    command -v apt-get >/dev/null || { echo "make: no apt-get here; install what Debian calls: $$*" >&2; exit 1; }
    echo "make: installing Debian packages: $$*"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$$@" >/dev/null
}
endef

# What each package says of itself; a short licence text says less than a classifier, a long one is a whole licence.
define LICENCES
from importlib.metadata import distributions
def licence(about):
    classified = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    text = (about.get("License") or "").strip().partition("\n")[0]
    return about.get("License-Expression") or ", ".join(classified) or text or "says nothing"
found = {(each.metadata["Name"], each.version): licence(each.metadata) for each in distributions()}
for (name, version), said in sorted(found.items(), key=lambda one: one[0][0].lower()):
    print(f"{name} {version}: {said}")
endef
export LICENCES

# find_python: the first Python that is new enough.
define FIND_PYTHON
find_python() {
    for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do
        if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then return; fi
    done
    echo "make: no Python 3.11 or newer found$(if $(PYTHON), at $(PYTHON)). Install one (Debian 12 or newer:" \
         "apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12 ..." >&2
    exit 1
}
endef

# The pip of an interrupted set-up may be missing: such a .venv is made again from nothing.
.venv/.made:
	@$(AS_ROOT)
	$(FIND_PYTHON)
	find_python
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then
	    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	    echo "make: $$python has no ensurepip, so that it cannot make a virtual environment."
	    install_debian "python$$version-venv"
	fi
	$(BIN)/python -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear .venv
	touch $@

# torch by itself: it has no hashes here, and pip wants all or none in one call.
.venv/.run: .venv/.made requirements.txt requirements-torch.txt
	@echo "make: installing what the suite needs into .venv (once)"
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --requirement requirements-torch.txt
	touch $@

.venv/.test: .venv/.run requirements-test.txt
	@echo "make: installing what its own tests need into .venv (once)"
	$(BIN)/python -m pip install --quiet --requirement requirements-test.txt
	touch $@

.venv/.lab: .venv/.test
	@$(AS_ROOT)
	missing=
	for command in $(COMMANDS); do
	    PATH="$$PATH:/usr/sbin:/sbin" command -v "$$command" >/dev/null || missing=yes
	done
	if [ -n "$$missing" ]; then install_debian $(PACKAGES); fi
	touch $@
