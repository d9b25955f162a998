# Thin: every target is a job of tools/xtask; tools/bootstrap.sh makes sure of a Rust toolchain first.
# Settings are given as make CPUS=8 MEM=4G run; `make help` lists them.

TARGETS := kernel image run shell test soak bench commute diff pcm moves miri mutants clean help
SETTINGS := KERNEL CPUS MEM NODES CMD PACKAGES CPU MACHINE APPEND ACCEL TIMEOUT DEBUG GZIP QUICK ONLY KINDS SYSTEMS BASE LINUX THP RUNS EVERY AGAIN RESUME MINUTES SEED KEEP ANSWERS JOBS LIST
export $(SETTINGS)

.PHONY: $(TARGETS)
.DEFAULT_GOAL := help

$(TARGETS):
	@tools/bootstrap.sh $@
