# build, install: what distributions and people use. The tests are in tests-vm/checks.mk.
PROFILE ?= release
CARGO ?= cargo
CARGOFLAGS ?= --locked
SCDOC ?= scdoc

prefix = /usr
bindir = $(prefix)/bin
libdir = $(prefix)/lib
datadir = $(prefix)/share

# Cargo calls the folder of its profile `dev` `debug`.
OUT = $(or $(CARGO_TARGET_DIR),target)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
MANPAGES = $(patsubst packaging/man/%.scd,target/man/%,$(wildcard packaging/man/*.scd))
COMPLETIONS = target/completions/mesh.bash target/completions/_mesh target/completions/mesh.fish

# Half of what the generator costs at each daemon-reload would be dynamic linking.
STATIC := $(shell printf 'int main(void){return 0;}' | cc -static -x c - -o /dev/null 2>/dev/null && echo '-C target-feature=+crt-static')

.PHONY: all build docs install uninstall bench clean
all: build docs

build:
	$(CARGO) build $(CARGOFLAGS) --profile $(PROFILE) -p mesh --bin mesh
	$(CARGO) rustc $(CARGOFLAGS) --profile $(PROFILE) -p mesh-generator --bin mesh-generator -- $(STATIC)

docs: $(MANPAGES)

# Without scdoc there are no manual pages, and everything else is as it should be.
target/man/%: packaging/man/%.scd
	@mkdir -p $(@D)
	@if command -v $(SCDOC) >/dev/null; then $(SCDOC) < $< > $@.new && mv $@.new $@; \
	else echo "$@: not made, as scdoc is not installed" >&2; fi

$(COMPLETIONS): build
	@mkdir -p $(@D)
	$(OUT)/mesh completions $(if $(filter %.bash,$@),bash,$(if $(filter %.fish,$@),fish,zsh)) > $@.new
	mv $@.new $@

install: build docs $(COMPLETIONS)
	install -Dm755 $(OUT)/mesh $(DESTDIR)$(bindir)/mesh
	install -Dm755 $(OUT)/mesh-generator $(DESTDIR)$(libdir)/systemd/system-generators/mesh-generator
	install -Dm755 $(OUT)/mesh-generator $(DESTDIR)$(libdir)/systemd/user-generators/mesh-generator
	install -d $(DESTDIR)$(libdir)/systemd/system
	install -m644 units/mesh-* $(DESTDIR)$(libdir)/systemd/system/
	install -Dm644 packaging/systemd/90-mesh.preset $(DESTDIR)$(libdir)/systemd/system-preset/90-mesh.preset
	install -Dm644 packaging/systemd/mesh.catalog $(DESTDIR)$(libdir)/systemd/catalog/mesh.catalog
	install -Dm644 packaging/systemd/mesh.tmpfiles $(DESTDIR)$(libdir)/tmpfiles.d/mesh.conf
	find packaging/catalogue -type f -printf '%P\n' | while read -r file; do \
	  install -Dm644 packaging/catalogue/$$file $(DESTDIR)$(libdir)/mesh/catalogue/$$file || exit 1; done
	install -Dm644 target/completions/mesh.bash $(DESTDIR)$(datadir)/bash-completion/completions/mesh
	install -Dm644 target/completions/_mesh $(DESTDIR)$(datadir)/zsh/vendor-completions/_mesh
	install -Dm644 target/completions/mesh.fish $(DESTDIR)$(datadir)/fish/vendor_completions.d/mesh.fish
	for page in $(notdir $(wildcard packaging/man/*.scd)); do page=$${page%.scd}; \
	  if [ -e target/man/$$page ]; then \
	    install -Dm644 target/man/$$page $(DESTDIR)$(datadir)/man/man$${page##*.}/$$page || exit 1; fi; done
	install -Dm644 -t $(DESTDIR)$(datadir)/doc/mesh LICENSE-MIT LICENSE-APACHE packaging/examples/node.toml

# What `install` put there, and no more: /etc/mesh and the memory in /var/lib/mesh stay. Without its generator an adopted
# machine would have its predecessor's control back at the next reload, beside the openings.
uninstall:
	@mode=$$(cat $(DESTDIR)/etc/mesh/mode 2>/dev/null || echo unmanaged); [ "$$mode" = unmanaged ] || \
	  { echo "uninstall: the mode of this machine is $$mode; run mesh release first" >&2; exit 1; }
	rm -f $(DESTDIR)$(bindir)/mesh
	rm -f $(DESTDIR)$(libdir)/systemd/system-generators/mesh-generator
	rm -f $(DESTDIR)$(libdir)/systemd/user-generators/mesh-generator
	rm -f $(patsubst units/%,$(DESTDIR)$(libdir)/systemd/system/%,$(wildcard units/mesh-*))
	rm -f $(DESTDIR)$(libdir)/systemd/system-preset/90-mesh.preset $(DESTDIR)$(libdir)/systemd/catalog/mesh.catalog
	rm -f $(DESTDIR)$(libdir)/tmpfiles.d/mesh.conf
	find packaging/catalogue -type f -printf '%P\n' | while read -r file; do \
	  rm -f $(DESTDIR)$(libdir)/mesh/catalogue/$$file || exit 1; done
	rm -f $(DESTDIR)$(datadir)/bash-completion/completions/mesh $(DESTDIR)$(datadir)/zsh/vendor-completions/_mesh
	rm -f $(DESTDIR)$(datadir)/fish/vendor_completions.d/mesh.fish
	for page in $(notdir $(wildcard packaging/man/*.scd)); do page=$${page%.scd}; \
	  rm -f $(DESTDIR)$(datadir)/man/man$${page##*.}/$$page || exit 1; done
	rm -f $(addprefix $(DESTDIR)$(datadir)/doc/mesh/,LICENSE-MIT LICENSE-APACHE node.toml)

# Beside systemd's fstab-generator and, where it is installed, podman's.
bench:
	$(MAKE) build PROFILE=release
	MESH_GENERATOR=$(CURDIR)/target/release/mesh-generator $(CARGO) bench $(CARGOFLAGS) -p mesh-generator --bench beside_others

clean:
	$(CARGO) clean

-include tests-vm/checks.mk
