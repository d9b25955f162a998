//! The errnos and flags that need more than one line, with the tests that cover them.

/// Call, errno or flag, and the test.
pub const TESTED: &[(&str, &str, &str)] = &[
    (
        "clone",
        "CLONE_CHILD_CLEARTID",
        "process/threads_share_memory_and_end",
    ),
    (
        "clone",
        "CLONE_CHILD_SETTID",
        "process/clone_settid_and_cleartid",
    ),
    (
        "clone",
        "CLONE_PARENT_SETTID",
        "process/clone_settid_and_cleartid",
    ),
    (
        "clone",
        "CLONE_SETTLS",
        "process/threads_share_memory_and_end",
    ),
    (
        "clone",
        "CLONE_SIGHAND",
        "process/threads_share_memory_and_end",
    ),
    (
        "clone",
        "CLONE_THREAD",
        "process/threads_share_memory_and_end",
    ),
    ("clone", "CLONE_VFORK", "process/vfork_and_exec"),
    ("clone", "CLONE_VM", "process/threads_share_memory_and_end"),
    ("exit", "STATUS", "process/exit_status_is_eight_bits"),
    (
        "exit_group",
        "STATUS",
        "process/exit_group_ends_all_threads",
    ),
    ("futex", "FUTEX_WAIT", "futex/shared_wake_across_processes"),
    (
        "futex",
        "FUTEX_WAIT_BITSET",
        "futex/wait_bitset_until_an_absolute_time",
    ),
    (
        "nanosleep",
        "REMAINDER",
        "signal/nanosleep_tells_what_was_left",
    ),
    (
        "open",
        "ETXTBSY",
        "process/opening_a_running_program_for_writing",
    ),
    ("open", "ENOSPC", "system/tmpfs_holds_what_it_was_given"),
    (
        "rt_sigaction",
        "SA_RESTART",
        "signal/slow_calls_are_restarted_on_request",
    ),
    ("rt_sigaction", "SA_RESTORER", "signal/handler_runs"),
    (
        "truncate",
        "ETXTBSY",
        "process/opening_a_running_program_for_writing",
    ),
    ("vfork", "WAITS", "process/vfork_and_exec"),
];
