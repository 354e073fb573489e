# check, check-quick, check-long, try: the tests. They need root, and install what is missing.
#
# Images and built worlds are kept between runs and clones, each under the hash of what it is made from. As root that is
# /var/cache/mesh-tests; it can be deleted at any time.
export MESH_TEST_CACHE ?= $(if $(filter 0,$(shell id -u)),/var/cache/mesh-tests,$(CURDIR)/target/vm)

# Test machines run what is built quickly; what is installed elsewhere is built with the profile `release`.
BOOTED = $(CARGO) run $(CARGOFLAGS) --quiet --package mesh-tests-vm --bin
LINTED = --workspace --all-targets

.PHONY: needs check check-quick check-booted check-long try

needs:
	tests-vm/install-needs.sh

# No booted machine: format, lints, unit, golden, property and namespace tests, systemd's judgement of the units.
check-quick: needs
	@if $(CARGO) fmt --version >/dev/null 2>&1; then set -x; $(CARGO) fmt --all --check; \
	else echo "check-quick: cargo fmt is not installed; the format is not checked" >&2; fi
	@if $(CARGO) clippy --version >/dev/null 2>&1; then set -x; $(CARGO) clippy $(CARGOFLAGS) --quiet $(LINTED) -- -D warnings; \
	else echo "check-quick: cargo clippy is not installed; lints are not checked" >&2; fi
	$(CARGO) test $(CARGOFLAGS) --quiet --no-fail-fast --workspace --exclude mesh-tests-vm
	$(CARGO) test $(CARGOFLAGS) --quiet --package mesh-tests-vm --lib

# The bed itself, the spikes in virtual machines, and every scenario on the predecessor's world.
check-booted: needs
	$(CARGO) test $(CARGOFLAGS) --quiet --package mesh-tests-vm --tests
	$(BOOTED) mesh-tests-vm

check: check-quick
	$(MAKE) check-booted

# Every scenario on both releases, several times. It goes on where it was stopped, and writes tests-vm/RESULTS.md.
check-long: needs
	$(BOOTED) mesh-campaign

# The throw-away machine in use: adopted while it is probed, shown, released.
try: needs
	$(BOOTED) mesh-try
