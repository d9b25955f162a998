//! Which names make a call or a comparison a mutation point: the vocabulary of the VM and that of the kernel's crates.

use crate::points::Part;

/// What is a point in a file.
pub struct Rules {
    /// Questions of functions and closures, and the answer on which the asker goes on as if nothing had changed.
    pub asked: &'static [(&'static str, bool)],
    /// The same of methods.
    pub checks: &'static [(&'static str, bool)],
    /// Words that make a comparison one of what was seen with what is.
    pub compared: &'static [&'static str],
    /// Functions that invalidate. Where there are any, the end of a gather is a flush, too.
    pub flushes: &'static [&'static str],
    /// Methods that free at once.
    pub frees: &'static [&'static str],
    /// Methods that note something down.
    pub records: &'static [&'static str],
    /// Methods that change a state.
    pub states: &'static [&'static str],
    /// Functions and methods that wake.
    pub wakes: &'static [&'static str],
    /// Whether each condition on which a function is left is a point; questions and comparisons inside of it are then none.
    pub guards: bool,
    /// Whether orderings are points: there are loom models that see them.
    pub orders: bool,
}

/// The rules for a file, by its path in the tree.
pub fn of(file: &str) -> &'static Rules {
    match Part::of(file) {
        Part::Kernel => &KERNEL,
        Part::Vm => &VM,
    }
}

/// Methods that take a lock.
pub const LOCKS: [&str; 5] = [
    "lock",
    "lock_nested",
    "lock_leaf",
    "lock_directory",
    "lock_lower_directory",
];
/// Functions that are fences.
pub const FENCES: [&str; 3] = ["fence", "fence_after_rmw", "fence_between_loads"];
/// Methods that free after a grace period.
pub const RETIRES: [&str; 4] = ["retire", "retire_link", "retire_frame", "retire_frames"];
/// Orderings stronger than relaxed.
pub const ORDERS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];
/// Where `is_empty` asks for the state of something: files of entries and layers. Elsewhere it asks for a list.
pub const EMPTY_IN: [&str; 3] = ["/pmap/", "/fault/", "/backing/"];
/// Functions that only tell people something.
pub const TELLING: [&str; 4] = ["fmt", "info", "usage", "anonymous_pages"];
/// Where `check` is no question.
pub const RANKS: &str = "class.rs";

/// In `ksync` and `vm`. What saves time alone is left out (`set_counted`, `may_ask`), and questions after which one looks again (`want`).
const VM: Rules = Rules {
    asked: &[
        ("allows", true),
        ("also", true),
        ("can_extend", true),
        ("check", true),
        ("is_cut_off", false),
        ("identity", true),
        ("is_fresh", true),
        ("is_marked", false),
        ("still", true),
    ],
    checks: &[
        ("check", true),
        ("empty_above", true),
        ("empty_but", true),
        ("front_writable", true),
        ("has_index", true),
        ("has_second", false),
        ("holds", true),
        ("is", true),
        ("is_closed", false),
        ("is_dead", false),
        ("is_empty", true),
        ("is_frame_due", false),
        ("is_full", false),
        ("is_hard_busy", false),
        ("is_own", true),
        ("is_pending", false),
        ("is_private", true),
        ("is_sole", true),
        ("is_still", true),
        ("is_swept", true),
        ("is_unborn", false),
        ("kill_if_empty", true),
        ("knows_own", true),
        ("may_move", true),
        ("needs_copy", false),
        ("notify", true),
        ("overlaps", false),
        ("same_layers", true),
        ("take_hard_busy", true),
        ("take_soft_busy", true),
        ("try_upgrade_busy", true),
    ],
    compared: &[
        "state",
        "generation",
        "stamp",
        "held",
        "round",
        "epoch",
        "global",
        "announced",
        "looked",
        "pfn",
        "merged",
        "units",
        "uses",
    ],
    flushes: &["send", "reload"],
    frees: &["free", "free_bulk"],
    records: &[
        "record",
        "record_all",
        "flush_pending",
        "raise_pending",
        "widen_pending",
        "lower_pending",
        "bump_generation",
        "set_fold_hint",
        "count_another",
        "set_folded",
        "set_own",
        "set_swept",
        "sweep_is_shared",
        "leave_page",
    ],
    states: &["kill", "set_dead", "set_needs_copy", "renew"],
    wakes: &[],
    guards: false,
    orders: true,
};

/// In the kernel's crates.
const KERNEL: Rules = Rules {
    asked: &[
        ("check", true),
        ("check_end", true),
        ("in_group_or_capable", true),
        ("is_beyond", false),
        ("is_crowded", false),
        ("is_eligible", true),
        ("is_gone", false),
        ("is_listed", true),
        ("is_own", true),
        ("may_attach", true),
        ("may_create_over", true),
        ("may_follow", true),
        ("may_link", true),
        ("may_name", true),
        ("may_remove", true),
        ("must_leave", true),
        ("retire_target", true),
    ],
    checks: &[
        ("check", true),
        ("check_names", true),
        ("check_rights", true),
        ("in_group", true),
        ("is_alive", true),
        ("is_ending", false),
        ("is_killed", false),
        ("is_mountpoint", false),
        ("is_orphaned", true),
        ("is_over", false),
        ("is_readable", true),
        ("is_within", false),
        ("is_zombie", true),
        ("kill_pending", false),
        ("may_be_stopped", true),
        ("may_look", true),
        ("may_signal", true),
        ("same_leaf", true),
    ],
    compared: &["state", "generation", "round", "seq", "tid", "id"],
    flushes: &[],
    frees: &[],
    records: &[],
    states: &[
        "declare_running",
        "declare_waiting",
        "forget_syscall",
        "settle",
        "withdraw",
    ],
    wakes: &[
        "kick",
        "post",
        "unpark",
        "wake",
        "wake_all",
        "wake_exited",
        "wake_one",
        "wake_pollers",
        "wake_readers",
        "wake_word",
        "wake_writers",
    ],
    guards: true,
    orders: false,
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn sources(dir: &Path, all: &mut String) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, all),
                false => *all += &fs::read_to_string(&path).unwrap_or_default(),
            }
        }
    }

    /// Those of the names that no file of these directories calls.
    fn absent(rules: &Rules, more: &[&'static str], dirs: &[&str]) -> Vec<String> {
        let mut text = String::new();
        for dir in dirs {
            sources(&machine::tools::root().join(dir).join("src"), &mut text);
        }
        let methods = [more, rules.records, rules.states, rules.frees].concat();
        let methods = methods
            .into_iter()
            .chain(rules.checks.iter().map(|(name, _)| *name));
        let functions = [rules.flushes, rules.wakes].concat();
        let functions = functions
            .into_iter()
            .chain(rules.asked.iter().map(|(name, _)| *name));
        let calls = methods
            .map(|name| format!(".{name}("))
            .chain(functions.map(|name| format!("{name}(")));
        calls.filter(|call| !text.contains(call)).collect()
    }

    /// A name that has changed there finds nothing here, and its points are gone without a word.
    #[test]
    fn every_name_of_the_tables_is_called_somewhere() {
        let everywhere = [&LOCKS[..], &RETIRES].concat();
        let vm = absent(&VM, &everywhere, &["crates/ksync", "crates/vm"]);
        assert!(vm.is_empty(), "no call of {vm:?}");
        let dirs = ["kernel/task", "kernel/vfs", "kernel/proc"];
        let kernel = absent(&KERNEL, &["lock"], &dirs);
        assert!(kernel.is_empty(), "no call of {kernel:?}");
        let mut text = String::new();
        sources(&machine::tools::root().join("crates/vm/src"), &mut text);
        sources(&machine::tools::root().join("crates/ksync/src"), &mut text);
        let fences = FENCES.map(|name| format!("{name}("));
        assert!(fences.iter().all(|call| text.contains(call)), "{FENCES:?}");
    }
}
