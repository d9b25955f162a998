//! The host laboratory for `vm`: simulated CPUs, TLBs and memory.
