#!/bin/sh
# Runs `cargo xtask ARGUMENTS` with a Rust toolchain that can build the kernel, getting one first if need be:
# rustup's, with the kernel's target added, or Debian's, which builds `core` from its source package.
set -eu
cd "$(dirname "$0")/.."
target=x86_64-unknown-none
debian_packages="cargo-web rustc-web rust-web-src lld gcc libc6-dev"

# Newest features used are those of this release; older compilers fail in odd places, so ask first.
new_enough() { # new_enough RUSTC
    minor=$("$1" --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ "${minor:-0}" -ge 90 ]
}

can_build() { # can_build DIRECTORY: cargo and rustc there, with `core` for the target or its source
    [ -x "$1/cargo" ] && [ -x "$1/rustc" ] && new_enough "$1/rustc" || return 1
    lib=$("$1/rustc" --print sysroot)/lib/rustlib
    [ -d "$lib/$target/lib" ] && return 0
    [ -d "$lib/src/rust/library/core" ] && command -v ld.lld >/dev/null
}

choose() { # prints the directory of a toolchain that can build
    for candidate in "$(command -v cargo 2>/dev/null || true)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
        [ -n "$candidate" ] || continue
        directory=$(dirname "$candidate")
        if can_build "$directory"; then echo "$directory"; return 0; fi
    done
    return 1
}

directory=$(choose) || {
    if command -v rustup >/dev/null; then
        echo "adding the target $target to the Rust toolchain" >&2
        rustup target add "$target" >&2 || true
    fi
    directory=$(choose)
} || {
    as_root=
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null && as_root="sudo -n"; } || {
        echo "missing: a Rust compiler. Install with: apt-get install $debian_packages" >&2
        exit 1
    }
    echo "installing $debian_packages" >&2
    export DEBIAN_FRONTEND=noninteractive
    # Fresh lists first: the stable release's own compiler is too old, its security archive's is not.
    $as_root apt-get -qq update >/dev/null || echo "apt-get update failed; trying the package lists that are here" >&2
    # shellcheck disable=SC2086 # lists of words
    $as_root apt-get -qq install -y --no-install-recommends $debian_packages >/dev/null
    directory=$(choose) || {
        echo "the installed $(/usr/bin/rustc --version || true) cannot build for $target: at least 1.90 is needed, with its source" >&2
        echo "Debian 12 has it in its security archive (bookworm-security main); or use rustup" >&2
        exit 1
    }
}

PATH=$directory:$PATH
export PATH

# cargo is quiet only where nothing is to be built: a silent build of a minute or two looks like a hang. Whether something is,
# is seen by a note of the last build: for which directory and compiler it was, and that no source is newer.
note=${CARGO_TARGET_DIR:-target}/debug/xtask.built
here="$(pwd), $(rustc --version)"
is_built() {
    [ "$(cat "$note" 2>/dev/null)" = "$here" ] || return 1
    [ -z "$(find .cargo Cargo.toml Cargo.lock tools/machine tools/xtask -newer "$note" -print -quit)" ]
}
if ! is_built; then
    echo "building tools/xtask, the program that does what make is asked for (the first time: a minute or two)" >&2
    cargo build --package xtask
    echo "$here" >"$note"
fi
exec cargo run --quiet --package xtask -- "$@"
