# Thin: every target is a job of tools/xtask; tools/bootstrap.sh makes sure of a Rust toolchain first.
# Settings are given as make CPUS=8 MEM=4G run, and handed on as variables of the environment; `make help` lists them.

TARGETS := kernel user image run shell test host-test boot-test diff-test soak accept bench rivals commute diff pcm c2c miri mutants clean help
.PHONY: $(TARGETS)
.DEFAULT_GOAL := help

$(TARGETS):
	@tools/bootstrap.sh $@
