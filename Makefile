# Shunt: build, install, test, demo.
#
#   make              release build
#   make test         install what the tests need, build, run all tests
#   make demo         install what the demo needs, build, show TCP and Shunt side by side
#   make vm-demo      the same between two virtual machines that share memory
#   make compat       run the tests with other people's programs in full, and record them in docs/compatibility.md
#   make bench        the same at length, with BENCH_ARGS for `shunt bench` (docs/bench.md)
#   make figures      chart and table of the README, from the report of a run: REPORT=docs/bench/FILE.json
#   make docs         the documentation as a site, under target/site/book
#   make install      PREFIX=/usr/local, LIBDIR=lib, DESTDIR= for packagers; make uninstall takes it away
#   make deb          a Debian package and one with debug symbols, under target/debian; GLIBC=2.17: for systems from that version on
#   make rpm          the same for RPM, under target/rpm
#   make check        formatting, lints, links of the documentation; licences, bans and advisories where cargo-deny
#                     is installed (INSTALL_TOOLS=1 installs it)
#   make soak         the long forms of the tests of faults, and programs that nobody wrote, each for SOAK_SECONDS
#   make smc-speed    figures for docs/rdma.md: kernel SMC-R, Shunt and TCP between two guests, on a machine that does nothing else
#   make test-points  what happens between two steps of a call, with a library that stops there
#   make test-upgrade the last commit of each older version, built and run together with this one
#   make test-portable packages for old systems, and Debian 11 with them
#   make asan         the long forms of the tests of hostile peers, with AddressSanitizer; needs nightly
#   make fuzz         each fuzz target for FUZZ_SECONDS
#   make test-miri    what Miri can run of engine, wire and shared memory; needs nightly

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

CARGO ?= cargo
PREFIX ?= /usr/local
# Where the loader looks for libraries, below PREFIX.
LIBDIR ?= lib
DESTDIR ?=
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
RELEASE := $(TARGET)/release
PROGRAMS := tests/functional/install-programs

# Both ends of each functional test keep a core busy.
TEST_THREADS ?= 2
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 600

# What cargo does not say, or not in words that tell what to do, where it fails.
RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
define build-failed
{ version=$$($(CARGO) --version 2>/dev/null | cut -d' ' -f2 || true); \
    if [ -z "$$version" ]; then \
        echo "Shunt is built by cargo, which is not in PATH: install Rust $(RUST) or newer, as https://rustup.rs does it"; \
    elif [ "$$(printf '%s\n' $(RUST) "$$version" | sort -V | head -n 1)" != $(RUST) ]; then \
        echo "Shunt needs Rust $(RUST) or newer, and this is $$version: https://rustup.rs has it"; \
    fi; \
    command -v cc >/dev/null || echo "There is no cc, by which Rust links: install gcc (Debian: apt-get install gcc libc6-dev)"; \
    exit 1; } >&2
endef

.PHONY: all
all:
	@echo "$(CARGO) build --release --locked --workspace"
	@$(CARGO) build --release --locked --workspace || $(build-failed)

# What each step uses, as COMMAND:PACKAGE, or LIBRARY:PACKAGE.
DEMO_PROGRAMS := cc:build-essential nginx:nginx wrk:wrk redis-server:redis-server \
    redis-benchmark:redis-tools iperf3:iperf3 sockperf:sockperf
TEST_PROGRAMS := $(DEMO_PROGRAMS) ab:apache2-utils postgres:postgresql \
    pgbench:postgresql-contrib curl:curl python3:python3 openssl:openssl \
    /usr/lib/python3.11/test/test_socket.py:libpython3.11-testsuite stress-ng:stress-ng \
    strace:strace rpm:rpm rpmbuild:rpm systemd-analyze:systemd /lib/systemd/systemd:systemd \
    setpriv:util-linux nsenter:util-linux \
    tclsh:tcl dpkg-source:dpkg-dev java:openjdk-17-jdk-headless node:nodejs go:golang-go \
    php-fpm8.2:php8.2-fpm haproxy:haproxy stunnel:stunnel4 ssh:openssh-client sshd:openssh-server socat:socat \
    nc.openbsd:netcat-openbsd ncat:ncat memcached:memcached rsync:rsync tcpdump:tcpdump \
    slapd:slapd ldapsearch:ldap-utils named:bind9 dig:bind9-dnsutils svnserve:subversion vsftpd:vsftpd /usr/lib/dovecot/imap:dovecot-imapd /usr/lib/dovecot/pop3:dovecot-pop3d \
    qemu-system-x86_64:qemu-system-x86 ip:iproute2 nft:nftables sysctl:procps setarch:util-linux unshare:util-linux objdump:binutils \
    podman:podman /usr/lib/podman/netavark:netavark iptables:iptables runc:runc crun:crun \
    slirp4netns:slirp4netns newuidmap:uidmap nvme:nvme-cli fio:fio mkfs.ext4:e2fsprogs tshark:tshark bpftrace:bpftrace readelf:binutils \
    nbdkit:nbdkit qemu-img:qemu-utils nbdcopy:libnbd-bin /usr/include/infiniband/verbs.h:libibverbs-dev \
    /usr/lib/python3/dist-packages/yaml/__init__.py:python3-yaml libjemalloc.so.2:libjemalloc2 \
    libtcmalloc_minimal.so.4:libtcmalloc-minimal4 libmimalloc.so.2:libmimalloc2.0

.PHONY: deps-demo deps-test
deps-demo:
	@$(PROGRAMS) $(DEMO_PROGRAMS)

deps-test: deps-vm deps-qemu deps-prometheus
	@$(PROGRAMS) $(TEST_PROGRAMS)

# What checks rules of Prometheus: unpacked, as an installation would start a server.
PROMETHEUS := $(TARGET)/prometheus

.PHONY: deps-prometheus
deps-prometheus:
	@test -x $(PROMETHEUS)/usr/bin/promtool || { set -e; rm -rf $(PROMETHEUS).new; mkdir -p $(PROMETHEUS).new; cd $(PROMETHEUS).new; \
	    apt-get download prometheus >/dev/null; dpkg-deb -x *.deb .; rm -f -- *.deb usr/bin/prometheus; mv $(PROMETHEUS).new $(PROMETHEUS); }

# What virtual machines boot: unpacked, not installed.
VM := $(TARGET)/vm

.PHONY: deps-vm
deps-vm:
	@$(PROGRAMS) qemu-system-x86_64:qemu-system-x86 nsenter:util-linux ip:iproute2 xz:xz-utils
	@test -d $(VM)/boot || { set -e; rm -rf $(VM).new; mkdir -p $(VM).new; cd $(VM).new; \
	    kernel=$$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: *\(linux-image-[^ ]*\)$$/\1/p'); \
	    apt-get download $$(echo "$$kernel" | head -n 1) busybox-static >/dev/null; \
	    for package in *.deb; do dpkg-deb -x "$$package" .; done; rm -f -- *.deb; mv $(VM).new $(VM); }
	@test -d $(VM)-6.12/boot || { set -e; rm -rf $(VM)-6.12.new; mkdir -p $(VM)-6.12.new; cd $(VM)-6.12.new; \
	    kernel=$$(apt-cache pkgnames linux-image-6.12. | grep -E '^linux-image-6\.12\.[0-9]+\+deb12-amd64$$' | sort -V | tail -n 1); \
	    apt-get download "$${kernel:?no kernel 6.12 in the archive of security updates}" >/dev/null; \
	    for package in *.deb; do dpkg-deb -x "$$package" .; done; rm -f -- *.deb; mv $(VM)-6.12.new $(VM)-6.12; }

# A QEMU that attaches vfio-user devices, which Debian 12's cannot, and under which kernels do not end by themselves: unpacked.
# SHUNT_TEST_QEMU names another one.
.PHONY: deps-qemu
deps-qemu:
	@test -n "$${SHUNT_TEST_QEMU-}" || test -x $(TARGET)/qemu/qemu-system-x86_64 || tests/functional/fetch-qemu $(TARGET)/qemu

# Every part of it runs, whatever becomes of another, where make is told to keep going.
.PHONY: test
test: test-units test-sim test-fuzz test-loom test-points test-functional

# Unit tests run in the dev profile: it checks overflow and assertions, and needs no link-time
# optimisation of every test. The functional tests run the release build, as users do.
# SHUNT_TEST_RDMA_DEVICE names an RDMA device of the machine (rxe, siw, a card) for the suite of verbs.
.PHONY: test-units
test-units: deps-test all
	$(CARGO) test --locked --workspace --exclude shunt-functional --no-fail-fast

# What two programs can do with one connection: see crates/shunt-engine/src/sim. And two hosts with a link between them.
SIM_HISTORIES ?= 100000
.PHONY: test-sim
test-sim:
	SIM_HISTORIES=$(SIM_HISTORIES) CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	    $(CARGO) test --locked --release -p shunt-engine --lib sim
	SIM_HISTORIES=$(SIM_HISTORIES) CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	    $(CARGO) test --locked --release -p shunt-far --test simulator

# That the fuzz targets can be built.
.PHONY: test-fuzz
test-fuzz:
	RUSTFLAGS="--cfg fuzzing" $(CARGO) check --locked --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)/fuzz

# loom models of everything that is shared between threads and processes.
.PHONY: test-loom
test-loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(TARGET)/loom \
	    $(CARGO) test --locked --release -p shunt-shm -p shunt-heap --test loom

# What Miri can run: not the simulator, whose coroutines change stacks by assembly, not what makes other system calls than those of
# files, and not what takes it an hour. Shared memory is plain memory there (crates/shunt-shm/src/memfd/plain.rs).
# Few cases of each property, as it is slow.
MIRI_CASES ?= 8
MIRI_SHM := table::a_posted table::a_stale table::a_ticket region::two_maps region::a_slot_proposes region::writes_stay \
    region::each_process region::a_copy_stays
MIRI := PROPTEST_CASES=$(MIRI_CASES) MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=$(TARGET)/miri \
    $(CARGO) +nightly miri test --locked
.PHONY: test-miri
test-miri:
	@cargo +nightly miri --version >/dev/null 2>&1 || rustup +nightly component add miri rust-src
	$(MIRI) -p shunt-engine --lib -- --skip sim:: --skip pinning::
	$(MIRI) -p shunt-wire
	$(MIRI) -p shunt-shm --lib -- --skip leftover::
	$(MIRI) -p shunt-shm --test shm -- $(MIRI_SHM)

# Real programs and a byte-by-byte verifier, over kernel TCP and over Shunt.
.PHONY: test-functional
test-functional: deps-test all
	SHUNT_TEST_BIN_DIR=$(RELEASE) CARGO=$(CARGO) tests/functional/run -- --test-threads $(TEST_THREADS)

# The library with points, at which tests stop, interrupt and end threads. Nobody installs it, so it
# is built in little time, and beside the other one.
POINTS := $(TARGET)/points

.PHONY: points
points:
	CARGO_TARGET_DIR=$(POINTS) CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	    $(CARGO) build --locked --release -p shunt-preload --features points

# What happens between two steps of a call: panics, signals, jumps, forks, descriptors used again.
.PHONY: test-points
test-points: deps-test all points
	SHUNT_TEST_BIN_DIR=$(RELEASE) SHUNT_TEST_POINTS_DIR=$(POINTS)/release \
	    $(CARGO) test --locked -p shunt-functional --test points -- --test-threads $(TEST_THREADS)

# The last commit of each older version with which this one works together (docs/upgrade.md), the oldest first: built beside it, in
# little time. Their files are new each time, or cargo would take one version's for the other's.
NEIGHBOURS ?= dec5873^ a1f0564 2cbe6f08
OLD := $(TARGET)/neighbour

.PHONY: test-upgrade
test-upgrade: deps-test all
	for commit in $(NEIGHBOURS); do \
	    rm -rf $(OLD)/source; \
	    mkdir -p $(OLD)/source; \
	    git archive $$commit | tar -xm -C $(OLD)/source; \
	    CARGO_TARGET_DIR=$(OLD) CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	        $(CARGO) build --locked --release --manifest-path $(OLD)/source/Cargo.toml -p shunt-preload -p shunt-cli; \
	    SHUNT_TEST_BIN_DIR=$(RELEASE) SHUNT_TEST_OLD_DIR=$(OLD)/release \
	        $(CARGO) test --locked -p shunt-functional --test neighbours -- --test-threads $(TEST_THREADS); \
	done

# Peers that break the rules, with AddressSanitizer in the library and in the programs on both ends. The tool is
# that of every day.
ASAN := $(TARGET)/asan/x86_64-unknown-linux-gnu/release

.PHONY: asan
asan: deps-test all
	RUSTFLAGS="-Zsanitizer=address --cfg asan -Clink-arg=-rdynamic" CARGO_TARGET_DIR=$(TARGET)/asan \
	    $(CARGO) +nightly build --locked --release --target x86_64-unknown-linux-gnu \
	    -p shunt-preload -p shunt-functional
	install $(RELEASE)/shunt $(ASAN)/
	SHUNT_TEST_BIN_DIR=$(ASAN) SHUNT_TEST_FULL=1 SOAK_SECONDS=$(SOAK_SECONDS) \
	    $(CARGO) test --locked -p shunt-functional --test hostile -- --nocapture --test-threads 1

# What goes wrong on a machine, for as long as one likes: one test at a time, so that each has the machine.
.PHONY: soak
soak: deps-test all
	SIM_SEED=$$(date +%s) $(MAKE) test-sim SIM_HISTORIES=$$(($(SOAK_SECONDS) * 5000))
	SHUNT_TEST_BIN_DIR=$(RELEASE) SHUNT_TEST_FULL=1 SOAK_SECONDS=$(SOAK_SECONDS) \
	    $(CARGO) test --locked -p shunt-functional --test faults --test differential --test rdma --test smc --test struck --no-fail-fast \
	    -- --nocapture --test-threads 1

# What no other run has the time and the quiet for.
.PHONY: smc-speed
smc-speed: deps-test all
	SHUNT_TEST_BIN_DIR=$(RELEASE) $(CARGO) test --locked -p shunt-functional --test smc speed -- --ignored --nocapture

.PHONY: demo
demo: deps-demo all
	@$(RELEASE)/shunt-demo

# The same between two virtual machines.
.PHONY: vm-demo
vm-demo: deps-demo deps-vm deps-qemu all
	@$(RELEASE)/shunt-vm-demo

# What was tried with which result: what `make test` does in short, at length and on record.
RECORD := $(TARGET)/compat

.PHONY: compat
compat: deps-test all
	rm -rf $(RECORD)
	SHUNT_TEST_BIN_DIR=$(RELEASE) SHUNT_TEST_RECORD=$(RECORD) SHUNT_TEST_FULL=1 \
	    $(CARGO) test --locked -p shunt-functional --test programs --test suites --no-fail-fast \
	    -- --test-threads $(TEST_THREADS)
	$(RELEASE)/shunt-compat $(RECORD) docs/compatibility.md

BENCH_ARGS ?= --json bench.json --html bench.html

.PHONY: bench
bench: deps-demo all
	@$(RELEASE)/shunt bench $(BENCH_ARGS)

# The reports of which the README has the figures, the first one in full: others by REPORT="docs/bench/FILE.json ...".
REPORT ?= $(shell sed -n 's/^<!-- figures of \(.*\) -->$$/\1/p' README.md)

.PHONY: figures
figures:
	$(CARGO) run --locked -p shunt-cli -- bench --from $(REPORT) --svg docs/images/results.svg --readme README.md

# The pages keep their places, so that links between them are those of the repository.
SITE := $(TARGET)/site

.PHONY: docs
docs:
	@mdbook --version >/dev/null 2>&1 || $(CARGO) install --locked mdbook
	@mdbook-mermaid --version >/dev/null 2>&1 || $(CARGO) install --locked mdbook-mermaid
	rm -rf $(SITE)
	mkdir -p $(SITE)/src/docs
	cp docs/site/book.toml docs/site/site.css $(SITE)/
	cp docs/site/SUMMARY.md *.md LICENSE-* $(SITE)/src/
	cp -r docs/* $(SITE)/src/docs/
	rm -r $(SITE)/src/docs/site
	mdbook-mermaid install $(SITE)
	@log=$$(mdbook build $(SITE) 2>&1) || { echo "$$log" >&2; exit 1; }; \
	    if grep -E 'WARN|ERROR' <<< "$$log" >&2; then echo "mdbook has warnings, see above" >&2; exit 1; fi; \
	    echo "$(SITE)/book/index.html"

# What `cargo deny` checks; all of it unless told. Advisories are fetched from the network.
DENY ?=
# Not empty: install cargo-deny where it is missing, which takes minutes.
INSTALL_TOOLS ?=

# Documentation twice: links from public items to private ones show without the private items, broken links of private
# items with them. The command by itself, as the library has its name, and two pages at one place at once fail now and then.
.PHONY: check
check:
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked -p shunt-preload --features points -- -D warnings
	@# Atomics that a simulator hears of are for tests alone.
	@tree=$$($(CARGO) tree --locked --workspace -e no-dev -f '{p} [{f}]'); \
	grep -q 'shunt-shm .*\[\]' <<< "$$tree" && ! grep 'shunt-shm .*\[.*sim' <<< "$$tree"
	for items in "" --document-private-items; do \
	    RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --exclude shunt-cli --no-deps $$items; \
	    RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked -p shunt-cli --no-deps $$items; \
	done
	@if [[ -n "$(INSTALL_TOOLS)" ]] && ! cargo deny --version >/dev/null 2>&1; then \
	    $(CARGO) install --locked cargo-deny; \
	fi
	@if cargo deny --version >/dev/null 2>&1; then \
	    echo "$(CARGO) deny check $(DENY)"; \
	    $(CARGO) deny check $(DENY); \
	else \
	    echo "cargo-deny is not installed: licences are not checked (INSTALL_TOOLS=1 installs it)"; \
	fi

# AddressSanitizer knows nothing of the simulator's coroutines: it takes a panic on one of their stacks for an overflow.
.PHONY: fuzz
fuzz:
	@cargo fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz
	for target in $$(cargo +nightly fuzz list); do \
	    case $$target in engine_history) with=none ;; *) with=address ;; esac; \
	    cargo +nightly fuzz run --sanitizer $$with "$$target" -- -max_total_time=$(FUZZ_SECONDS); \
	done

# $(call install-found,PATTERN,DIRECTORY[,NAME]): generated files that match, under one name or
# their own.
define install-found
	find $(TARGET)/docs -name '$(1)' -print0 | while IFS= read -r -d '' file; do \
	    install -Dm644 "$$file" "$(DESTDIR)$(PREFIX)/$(2)/$(or $(3),$$(basename "$$file"))"; \
	done
endef

# $(call install-units,FROM,DIRECTORY): systemd units, which name programs by their full path.
define install-units
	install -d $(DESTDIR)$(PREFIX)/$(2)
	for unit in $(1)/*.*; do \
	    sed 's|/usr/bin/shunt|$(PREFIX)/bin/shunt|' "$$unit" \
	        > $(DESTDIR)$(PREFIX)/$(2)/"$$(basename "$$unit")"; \
	done
endef

# `sudo make install` after `make`: root's PATH has no cargo, and what is to be installed is there.
.PHONY: install
install:
	@if command -v $(firstword $(CARGO)) >/dev/null || [ ! -x $(RELEASE)/shunt ]; then \
	    $(MAKE) --no-print-directory all; \
	else echo "cargo is not in PATH: what has been built is installed as it is"; fi
	$(MAKE) --no-print-directory install-recorded

# What was installed, and which directories were made for it: files, then directories, each below DESTDIR.
RECORDED := $(DESTDIR)$(PREFIX)/share/shunt/installed

# An installation that `make uninstall` takes away. It is made beside first, so that the directories are known that it makes.
.PHONY: install-recorded
install-recorded:
	rm -rf $(TARGET)/installation; mkdir -p $(TARGET)
	$(MAKE) --no-print-directory install-built DESTDIR=$(TARGET)/installation
	cd $(TARGET)/installation && { \
	    find . -mindepth 1 ! -type d -printf '/%P\n'; echo $(PREFIX)/share/shunt/installed; \
	    find . -mindepth 1 -type d -printf '/%P\n' | while IFS= read -r place; do \
	        [ -d "$(DESTDIR)$$place" ] && ! grep -qsxF "$$place" $(RECORDED) || echo "$$place"; done | sort; \
	} > $(TARGET)/installed
	rm -rf $(TARGET)/installation; mkdir -p $(TARGET)
	$(MAKE) --no-print-directory install-built
	@# What an earlier version had, and this one has not.
	if [ -f $(RECORDED) ]; then grep -vxFf $(TARGET)/installed $(RECORDED) | while IFS= read -r left; do \
	    [ -d "$(DESTDIR)$$left" ] && [ ! -L "$(DESTDIR)$$left" ] || rm -f "$(DESTDIR)$$left"; done; fi
	install -Dm644 $(TARGET)/installed $(RECORDED)

# The inverse of `make install`, with the same PREFIX and DESTDIR. Directories stay that were there before, or have something else in them.
.PHONY: uninstall
uninstall:
	@[ -f $(RECORDED) ] || { echo "$(RECORDED) is missing: \`make install\` has not installed anything below $(DESTDIR)$(PREFIX), or a package has" >&2; exit 1; }
	tac $(RECORDED) | while IFS= read -r place; do \
	    if [ -d "$(DESTDIR)$$place" ] && [ ! -L "$(DESTDIR)$$place" ]; then echo "$$place" >> $(TARGET)/places; else rm -f "$(DESTDIR)$$place"; fi; done
	[ ! -f $(TARGET)/places ] || while IFS= read -r place; do rmdir --ignore-fail-on-non-empty "$(DESTDIR)$$place"; done < $(TARGET)/places
	rm -f $(TARGET)/places

# What has been built, and what is generated from it. Programs run with what is replaced: it is renamed, so that there is
# always a whole one, and no file is written to that somebody has mapped.
.PHONY: install-built
install-built:
	install -Dm755 $(RELEASE)/shunt $(DESTDIR)$(PREFIX)/bin/shunt.new
	mv -fT $(DESTDIR)$(PREFIX)/bin/shunt.new $(DESTDIR)$(PREFIX)/bin/shunt
	SHUNT_LIB=$(RELEASE)/libshunt.so $(RELEASE)/shunt library install $(DESTDIR)$(PREFIX)/lib/shunt
	install -Dm644 $(RELEASE)/libshunt_nbdkit.so $(DESTDIR)$(PREFIX)/lib/shunt/nbdkit-shunt-plugin.so.new
	mv -fT $(DESTDIR)$(PREFIX)/lib/shunt/nbdkit-shunt-plugin.so.new $(DESTDIR)$(PREFIX)/lib/shunt/nbdkit-shunt-plugin.so
	install -Dm644 $(RELEASE)/libshunt_nvme_c.so $(DESTDIR)$(PREFIX)/$(LIBDIR)/libshunt_nvme.so.0.new
	mv -fT $(DESTDIR)$(PREFIX)/$(LIBDIR)/libshunt_nvme.so.0.new $(DESTDIR)$(PREFIX)/$(LIBDIR)/libshunt_nvme.so.0
	ln -sfT libshunt_nvme.so.0 $(DESTDIR)$(PREFIX)/$(LIBDIR)/libshunt_nvme.so
	for header in dist/include/*.h; do \
	    install -Dm644 $$header $(DESTDIR)$(PREFIX)/include/$$(basename $$header); \
	done
	for page in dist/man/*; do \
	    install -Dm644 $$page $(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$$(basename $$page); \
	done
	for example in dist/examples/*.*; do \
	    install -Dm644 $$example $(DESTDIR)$(PREFIX)/share/doc/shunt/examples/$$(basename $$example); \
	done
	for page in docs/*.md; do \
	    install -Dm644 $$page $(DESTDIR)$(PREFIX)/share/doc/shunt/$$page; \
	done
	install -Dm644 dist/grafana/shunt.json $(DESTDIR)$(PREFIX)/share/shunt/grafana/shunt.json
	install -Dm644 dist/prometheus/shunt.rules.yml $(DESTDIR)$(PREFIX)/share/shunt/prometheus/shunt.rules.yml
	install -Dm755 dist/extcap/shunt-extcap $(DESTDIR)$(PREFIX)/share/shunt/extcap/shunt-extcap
	for file in dist/kubernetes/* dist/kubernetes-metrics/* dist/containers/*; do \
	    install -Dm644 $$file $(DESTDIR)$(PREFIX)/share/shunt/$${file#dist/}; \
	done
	rm -rf $(TARGET)/docs
	mkdir -p $(TARGET)/docs
	$(RELEASE)/shunt docs $(TARGET)/docs
	$(call install-found,*.1,share/man/man1)
	$(call install-found,shunt.bash,share/bash-completion/completions,shunt)
	$(call install-found,_shunt,share/zsh/site-functions)
	$(call install-found,shunt.fish,share/fish/vendor_completions.d)
	$(call install-units,dist/systemd,lib/systemd/system)
	$(call install-units,dist/systemd/user,lib/systemd/user)

# What packages hold: no tests, no load programs but those of `shunt bench`.
PARTS := -p shunt-cli -p shunt-preload -p shunt-nbdkit -p shunt-nvme-c
# The oldest glibc that packages are for: zig links with it, whatever this system has. Empty: with the one that there is.
GLIBC ?=
ZIG := $(TARGET)/zig
ZIG_TRIPLE := $(shell uname -m)-unknown-linux-gnu
PACKAGED := $(if $(GLIBC),$(TARGET)/$(ZIG_TRIPLE)/release,$(RELEASE))

.PHONY: packaged
packaged: $(if $(GLIBC),deps-zig)
ifeq ($(GLIBC),)
	$(CARGO) build --release --locked $(PARTS)
else
	PATH=$(ZIG)/bin:$$PATH CARGO_ZIGBUILD_PYTHON_PATH=$(ZIG)/bin/python \
	    $(CARGO) zigbuild --release --locked --target $(ZIG_TRIPLE).$(GLIBC) $(PARTS)
endif

# Where the parts are then.
.PHONY: packaged-directory
packaged-directory:
	@echo $(PACKAGED)

.PHONY: deps-zig
deps-zig:
	@$(ZIG)/bin/python -m ziglang version >/dev/null 2>&1 || { python3 -m venv $(ZIG) && $(ZIG)/bin/pip install --quiet ziglang; }
	@PATH=$(ZIG)/bin:$$PATH $(CARGO) zigbuild --version >/dev/null 2>&1 || $(CARGO) install --locked --root $(ZIG) cargo-zigbuild

# Debug information of all that is installed below STAGE goes to files below DEBUG, where debuggers look for them.
.PHONY: split-debug
split-debug:
	cd $(STAGE) && find usr -type f \( -name shunt -o -name '*.so' -o -name '*.so.0' \) -perm -u+r | while IFS= read -r file; do \
	    [ "$$(head -c 4 "$$file" | tail -c 3)" = ELF ] || continue; \
	    debug=$(DEBUG)/$$file.debug; mkdir -p "$$(dirname "$$debug")"; \
	    objcopy --only-keep-debug --compress-debug-sections "$$file" "$$debug"; chmod 644 "$$debug"; \
	    objcopy --strip-unneeded --add-gnu-debuglink="$$debug" "$$file"; done

# cargo-deb takes what an installation puts into STAGE (crates/shunt-cli/Cargo.toml). DEBUG becomes a package of its own.
STAGE := $(TARGET)/release/stage
DEBUG := $(TARGET)/release/debug/usr/lib/debug

.PHONY: deb
deb: packaged
	@cargo deb --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deb
	@command -v dpkg-shlibdeps >/dev/null || $(PROGRAMS) dpkg-shlibdeps:dpkg-dev
	rm -rf $(STAGE) $(DEBUG)
	$(MAKE) --no-print-directory install-built DESTDIR=$(STAGE) PREFIX=/usr RELEASE=$(PACKAGED)
	$(MAKE) --no-print-directory split-debug
	$(CARGO) deb --locked --no-build --no-strip -p shunt-cli --output $(TARGET)/debian/
	mkdir -p $(TARGET)/release/debug/DEBIAN
	printf '%s\n' 'Package: shunt-dbgsym' 'Version: $(VERSION)-1' "Architecture: $$(dpkg --print-architecture)" 'Section: debug' \
	    'Depends: shunt (= $(VERSION)-1)' 'Maintainer: The Shunt developers <shunt@users.noreply.github.com>' \
	    'Description: debug symbols for shunt' > $(TARGET)/release/debug/DEBIAN/control
	dpkg-deb --root-owner-group --build $(TARGET)/release/debug $(TARGET)/debian/

# Packages for old systems, in one: no symbol is newer than 2.17, and programs of Debian 11 are shunted. Needs root.
.PHONY: test-portable
test-portable:
	@$(PROGRAMS) debootstrap:debootstrap objdump:binutils unshare:util-linux ip:iproute2
	$(MAKE) packaged GLIBC=2.17
	rm -rf $(TARGET)/portable
	$(MAKE) --no-print-directory install-built DESTDIR=$(TARGET)/portable PREFIX=/usr RELEASE=$$($(MAKE) -s packaged-directory GLIBC=2.17)
	test -e $(TARGET)/debian-11/usr/bin/perl || { rm -rf $(TARGET)/debian-11; \
	    debootstrap --variant=minbase bullseye $(TARGET)/debian-11 http://deb.debian.org/debian; }
	SHUNT_TEST_STAGE=$(TARGET)/portable SHUNT_TEST_ROOT=$(TARGET)/debian-11 \
	    $(CARGO) test --locked -p shunt-functional --test portable -- --test-threads 1

# From what is committed, as a distribution would build it. Where packages are not RPM's, its database knows of none that the
# build needs.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

.PHONY: rpm
rpm:
	@command -v rpmbuild >/dev/null || $(PROGRAMS) rpmbuild:rpm
	mkdir -p $(TARGET)/rpm/SOURCES
	git archive --prefix=shunt-$(VERSION)/ --output=$(TARGET)/rpm/SOURCES/shunt-$(VERSION).tar.gz HEAD
	rpmbuild -bb $$(rpm -q rpm >/dev/null 2>&1 || echo --nodeps) --define "_topdir $(TARGET)/rpm" --define "version $(VERSION)" --define "glibc $(GLIBC)%{nil}" dist/rpm/shunt.spec
