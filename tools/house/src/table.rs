//! Everything in the rules that names a file, a crate or a number.
//!
//! Exceptions are dated and may only shrink: a test fails where one is too small, and where it is larger than what is there.

use crate::sizes::Entry;

/// Directories of the repository that the rules look into.
pub const AREAS: &[&str] = &["crates", "doc", "kernel", "tests", "tools", "user"];

/// Endings by which a word in a document is the name of a file.
pub const ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".svg", ".ld", ".sh"];

/// Whether the crate in a directory is a tool of the host, or a program of the image: outside of the layers, and used by none of them.
pub fn is_tool(dir: &str) -> bool {
    dir.starts_with("tools/") || dir == "user"
}

/// The crates by layer, the lowest first. A crate uses crates of lower layers only, and may skip layers. A crate may stand
/// here before it exists.
pub const LAYERS: &[&[&str]] = &[
    &["abi", "elfload", "fscore", "ksync", "vdso"],
    &["cred", "vm"],
    &["vm-host"],
    &["hal"],
    &["mem"],
    &["task"],
    &["drivers"],
    &["vfs"],
    &["proc"],
    &["net"],
    &["ipc", "tty"],
    &["fs"],
    &["syscall"],
    &["pantala"],
];

/// Directories whose crates the rule about rings is for.
pub const RING_AREAS: &[&str] = &["crates", "kernel"];

/// Files of the largest ring of imports that a crate may have.
pub const RING: usize = 5;

/// Crates that have a larger one, and its size. As of 27 November 2026, with three files of `pv-stock`; they go as vocabulary gets files of its own.
pub const RINGS: &[(&str, usize)] = &[("vm", 30)];

/// Lints that the workspace denies, by tool.
pub const DENIED: &[(&str, &str)] = &[
    ("rust", "unsafe_code"),
    ("rust", "unsafe_op_in_unsafe_fn"),
    ("clippy", "undocumented_unsafe_blocks"),
    ("clippy", "allow_attributes_without_reason"),
];

/// Files that allow unsafe code in themselves, or, at the head of a crate or module, in all below; and why.
pub const UNSAFE_ROOMS: &[(&str, &str)] = &[
    (
        "crates/ksync/src/lib.rs",
        "locks, epochs and hubs are made of raw memory",
    ),
    (
        "crates/vdso/image/image.rs",
        "programs call it, with addresses, and system calls are assembly",
    ),
    (
        "crates/ksync/tests/hub_memory.rs",
        "an allocator that counts",
    ),
    ("crates/ksync/tests/loom.rs", "models watch raw cells"),
    ("crates/ksync/tests/loom_byte.rs", "models watch raw cells"),
    ("crates/ksync/tests/loom_epoch.rs", "models watch raw cells"),
    ("crates/ksync/tests/loom_hub.rs", "models watch raw cells"),
    ("crates/ksync/tests/loom_link.rs", "models watch raw cells"),
    ("crates/ksync/tests/loom_table.rs", "models watch raw cells"),
    ("crates/ksync/tests/loom_wait.rs", "models watch raw cells"),
    (
        "crates/vm/src/machine.rs",
        "declares the unsafe trait of a machine",
    ),
    (
        "crates/vm/src/map/node.rs",
        "moves targets between nodes while readers follow them",
    ),
    (
        "crates/vm/src/page/mod.rs",
        "frames as bytes, and bytes of a record that designs share",
    ),
    (
        "crates/vm/src/rmap/pv/mod.rs",
        "entries lie in frames, and lead to pmaps that they do not own",
    ),
    ("crates/vm/tests/loom.rs", "a model watches a raw cell"),
    (
        "crates/vm-host/src/arena.rs",
        "implements the trait of a machine",
    ),
    (
        "crates/vm-host/src/heap.rs",
        "implements the trait of the global allocator",
    ),
    ("crates/vm-host/src/mmu.rs", "cores read and write frames"),
    (
        "crates/vm-host/tests/heap.rs",
        "fills the objects that the heap hands out",
    ),
    (
        "kernel/hal/src/current.rs",
        "a macro that names a symbol of hal in the kernel",
    ),
    ("kernel/hal/src/lib.rs", "the boundary to the hardware"),
    (
        "kernel/hal/src/upcalls.rs",
        "a macro that names symbols of hal in the kernel",
    ),
    (
        "kernel/hal/src/upper.rs",
        "a macro that names symbols of hal in the kernel",
    ),
    (
        "kernel/mem/src/heap.rs",
        "implements the trait of the global allocator",
    ),
    ("tools/coherence/plugin/src/lib.rs", "QEMU's interface is C"),
    ("user/src/bin/tiny_true.rs", "a program without a runtime"),
    ("user/src/bin/true_static.rs", "a program without a runtime"),
    ("user/src/sys.rs", "system calls and mapped memory"),
];

/// The page on the system calls of Linux, the directory whose files have handlers, and the numbers that Linux 6.1 has on x86-64.
pub const CALLS_PAGE: &str = "doc/linux.md";
/// See [`CALLS_PAGE`].
pub const CALLS_ROOM: &str = "kernel/";
/// See [`CALLS_PAGE`].
pub const CALLS: &[std::ops::RangeInclusive<u32>] = &[0..=334, 424..=450];

/// Where errno belongs: beginnings of paths.
pub const ERRNO_ROOMS: &[&str] = &["crates/abi/", "kernel/syscall/"];

/// Files elsewhere that use it, and why.
pub const ERRNO_EXCEPTIONS: &[(&str, &str)] = &[];

/// What documents name though no checkout has it: beginnings of paths, and why.
pub const NOT_IN_THE_TREE: &[(&str, &str)] = &[
    ("user/target/", "made by the build of the image's programs"),
    ("tests/CHECKER*.rs", "stands for two names"),
];

/// Lines that a file may have.
pub const FILE_LINES: usize = 600;

/// Files that have more, as of 24 November 2026: the end of the path, nothing, the lines that it may have, why.
pub const LONG_FILES: &[Entry] = &[
    (
        "ksync/src/epoch.rs",
        "",
        790,
        "one protocol, with its proof and its tests",
    ),
    ("vm-host/tests/coherence.rs", "", 760, "tests of one rule"),
    (
        "vm-host/tests/model/play.rs",
        "",
        860,
        "one player of all operations",
    ),
    (
        "vm-host/tests/pmap.rs",
        "",
        620,
        "a test for each operation",
    ),
    (
        "vm-host/tests/space.rs",
        "",
        900,
        "a test for each operation",
    ),
    ("vm/src/map/tree.rs", "", 680, "one data structure"),
    ("syscall/src/mm.rs", "", 770, "a handler for each call"),
    (
        "abitest/mm.rs",
        "",
        670,
        "a test for each line of the man pages",
    ),
    (
        "abitest/privileges.rs",
        "",
        640,
        "a test for each line of the man pages",
    ),
    (
        "abitest/process.rs",
        "",
        820,
        "a test for each line of the man pages",
    ),
];

/// Lines that a function may have.
pub const FUNCTION_LINES: usize = 60;

/// Functions that have more, as of 24 November 2026: the end of the path, the function, the lines that it may have, why.
pub const LONG_FUNCTIONS: &[Entry] = &[
    (
        "crates/vm/src/object/removal.rs",
        "Object::remove_step",
        70,
        "one slice of a walk, with what its ends mean",
    ),
    (
        "elfload/tests/image.rs",
        "names_what_is_wrong",
        110,
        "a table of cases",
    ),
    (
        "ksync/tests/keyed_queue.rs",
        "walks_see_each_member_that_was_there_once",
        70,
        "one scene for three threads",
    ),
    (
        "ksync/tests/loom_epoch.rs",
        "four",
        70,
        "one scene for four threads",
    ),
    (
        "vm-host/tests/allocator.rs",
        "storm",
        70,
        "one scene for several threads",
    ),
    (
        "vm-host/tests/loom.rs",
        "all_that_looks_at_a_map_looks_in_turn",
        120,
        "a table of operations",
    ),
    (
        "vm-host/tests/model/play.rs",
        "Player::act",
        90,
        "one arm for each operation",
    ),
    (
        "vm-host/tests/model/play.rs",
        "Player::act_beside",
        70,
        "one arm for each operation",
    ),
    (
        "vm-host/tests/model/play.rs",
        "Player::map",
        100,
        "one arm for each kind of mapping",
    ),
    (
        "vm-host/tests/shuttle.rs",
        "a_reader_sees_no_frame_of_another_space",
        70,
        "one scene for three CPUs",
    ),
    (
        "vm-host/tests/space.rs",
        "remap_grows_shrinks_and_moves",
        70,
        "one scene after another",
    ),
    (
        "vm-host/tests/space_model.rs",
        "World::apply",
        80,
        "one arm for each operation",
    ),
    (
        "kernel/hal/src/x86/boot/mod.rs",
        "start",
        80,
        "the order of boot, in one place",
    ),
    ("process.rs", "put_stat", 90, "one field after another"),
    (
        "walk.rs",
        "Walk::fast",
        87,
        "the way of a lookup that waits for nothing: in parts it takes up to 1 % more instructions",
    ),
    (
        "exec.rs",
        "commit",
        80,
        "the order of execve's steps, in one place",
    ),
    ("fork.rs", "new_process", 70, "one field after another"),
    ("process.rs", "Process::new", 70, "one field after another"),
    ("leak.rs", "check", 70, "one owner of frames after another"),
    ("mm.rs", "mmap", 80, "one check of arguments after another"),
    (
        "mm.rs",
        "mremap",
        80,
        "one check of arguments after another",
    ),
];

/// Words that a sentence about code should replace by its subject.
pub const VAGUE: &[&str] = &["who", "whoever"];

/// Lines that have one of them, by directory, as of 25 November 2026; `doc` has the files beside the directories, too.
pub const WORDS: &[(&str, usize)] = &[
    ("crates", 0),
    ("doc", 4),
    ("kernel", 6),
    ("tools", 6),
    ("user", 7),
];
