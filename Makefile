# Forwards to CMake and does the set-up that a bare Debian 12 needs. `make help` lists what there is.
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SCALE ?= tiny
PREFIX ?= /usr/local
PACKAGES = gcc cmake ninja-build pkg-config libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libzstd-dev gnuplot-nox fonts-dejavu-core
MANIFESTS = $(patsubst experiments/%.yaml,%,$(wildcard experiments/*.yaml))

.PHONY: all reproduce deps ensure-deps check check-asan check-tsan fuzz coverage install clean help $(addprefix reproduce-,$(MANIFESTS))

all: ensure-deps
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_ARGS) >$(BUILD).cmake.log 2>&1 \
	  || { cat $(BUILD).cmake.log; rm -f $(BUILD).cmake.log; exit 4; }; mkdir -p $(BUILD) && mv $(BUILD).cmake.log $(BUILD)/cmake.log
	@cmake --build $(BUILD) -j $(JOBS)

# Installs the missing packages as root; as another user names them and stops.
ensure-deps:
	@tools/deps.sh $(PACKAGES)

deps:
	@tools/deps.sh $(PACKAGES)

$(addprefix reproduce-,$(MANIFESTS)): reproduce-%: all
	@$(BUILD)/dashlab reproduce experiments/$*.yaml --scale $(SCALE)

reproduce:
	@echo "make reproduce-NAME runs experiments/NAME.yaml; names: $(MANIFESTS)" >&2; exit 2

# A manifest that is not there: the nearest name, once there is a program that knows it.
reproduce-%:
	@[ ! -x $(BUILD)/dashlab ] || $(BUILD)/dashlab check $* >/dev/null || exit 2
	@echo "there is no experiments/$*.yaml; names: $(MANIFESTS)" >&2; exit 2

check: all
	@cd $(BUILD) && ctest --output-on-failure -j 1

check-asan: ensure-deps
	@cmake --preset asan -G Ninja >/dev/null && cmake --build build-asan -j $(JOBS) && cd build-asan && ctest --output-on-failure -R '^unit/(core|data_shard|dash_gates|experiments|lmeval_(read|score)|ops_check|readers|reports|selection|tok)'

check-tsan: ensure-deps
	@cmake --preset tsan -G Ninja >/dev/null && cmake --build build-tsan -j $(JOBS) --target tsan_programs && cd build-tsan && ctest --output-on-failure -L tsan

fuzz: ensure-deps
	@tests/fuzz.sh $(or $(SECONDS_EACH),20)

coverage: ensure-deps
	@tests/coverage.sh

install: all
	@cmake --install $(BUILD)

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz build-coverage

help:
	@echo "make                    build $(BUILD)/dashlab (installs missing Debian packages when run as root)"
	@echo "make deps               install the missing packages, or name them"
	@echo "make check              build and run the tests"
	@echo "make check-asan         unit tests under ASan and UBSan;  make check-tsan: the pool under TSan"
	@echo "make fuzz               each fuzz target for SECONDS_EACH=20 seconds (needs clang);  make coverage: lines of the readers that the seeds reach"
	@echo "make reproduce-NAME     run experiments/NAME.yaml at SCALE=tiny (ci, tiny, small, paper); names: $(MANIFESTS)"
	@echo "make reproduce-all      every manifest (experiments/all.yaml); results/index.html shows what there is"
	@echo "make install            into PREFIX=$(PREFIX)"
