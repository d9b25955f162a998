//! Privileges: which of them exec grants and removes, capability sets, and what each capability permits.

use std::collections::HashMap;

use crate::harness::*;
use user::sys;

/// A user without privileges.
pub const USER: u32 = 1000;

/// Numbers of capabilities, as in linux/capability.h.
pub mod cap {
    pub const CHOWN: u64 = 0;
    pub const DAC_OVERRIDE: u64 = 1;
    pub const DAC_READ_SEARCH: u64 = 2;
    pub const FOWNER: u64 = 3;
    pub const FSETID: u64 = 4;
    pub const KILL: u64 = 5;
    pub const SETGID: u64 = 6;
    pub const SETUID: u64 = 7;
    pub const SETPCAP: u64 = 8;
    pub const IPC_LOCK: u64 = 14;
    pub const SYS_RAWIO: u64 = 17;
    pub const SYS_CHROOT: u64 = 18;
    pub const SYS_PTRACE: u64 = 19;
    pub const SYS_ADMIN: u64 = 21;
    pub const SYS_BOOT: u64 = 22;
    pub const SYS_NICE: u64 = 23;
    pub const SYS_RESOURCE: u64 = 24;
    pub const SYS_TIME: u64 = 25;
    pub const MKNOD: u64 = 27;
    pub const SYSLOG: u64 = 34;
}

/// The number of the first step that is false, from one, as an exit status; 0 if all are true.
pub fn first_wrong(steps: &[bool]) -> i32 {
    steps
        .iter()
        .position(|&right| !right)
        .map_or(0, |i| i as i32 + 1)
}

/// prctl(2) with up to four arguments.
fn prctl(what: i32, args: [u64; 4]) -> Result<u64, i32> {
    sc!(SYS_prctl, what, args[0], args[1], args[2], args[3])
}

/// capset(2) of the caller.
fn capset(effective: u64, permitted: u64, inheritable: u64) -> Result<u64, i32> {
    let header = [0x2008_0522u32, 0];
    let sets = [effective, permitted, inheritable];
    let words: Vec<u32> = [0, 32]
        .iter()
        .flat_map(|&by| sets.map(|set| (set >> by) as u32))
        .collect();
    sc!(SYS_capset, header.as_ptr(), words.as_ptr())
}

/// capget(2) of the caller: effective, permitted, inheritable.
fn capget() -> [u64; 3] {
    let mut header = [0x2008_0522u32, 0];
    let mut words = [0u32; 6];
    let _ = sc!(SYS_capget, header.as_mut_ptr(), words.as_mut_ptr());
    [0, 1, 2].map(|i| u64::from(words[i]) | u64::from(words[i + 3]) << 32)
}

/// Makes the caller an unprivileged user.
pub fn become_user() -> Result<u64, i32> {
    sys::become_user(USER, &[])
}

/// Makes the caller a user whose effective and permitted sets are `caps`.
pub fn become_user_with(caps: &[u64]) -> Result<u64, i32> {
    let set = caps.iter().fold(0, |set, cap| set | 1 << cap);
    prctl(libc::PR_SET_KEEPCAPS, [1, 0, 0, 0])?;
    become_user()?;
    capset(set, set, 0)?;
    prctl(libc::PR_SET_DUMPABLE, [1, 0, 0, 0])
}

/// Drops `caps` from root's capabilities.
pub fn drop_caps(caps: &[u64]) -> Result<u64, i32> {
    let [effective, permitted, _] = capget();
    let without = |set| caps.iter().fold(set, |set: u64, cap| set & !(1 << cap));
    capset(without(effective), without(permitted), 0)
}

/// Runs `prepare` and `f` in a child.
pub fn as_child(
    prepare: impl FnOnce() -> Result<u64, i32>,
    f: impl FnOnce() -> Result<u64, i32>,
) -> Result<u64, i32> {
    const NOT_PREPARED: i32 = 250;
    let status = in_child(|| match prepare() {
        Ok(_) => f().err().unwrap_or(0),
        Err(_) => NOT_PREPARED,
    });
    match status {
        Ok(0) => Ok(0),
        Ok(status) => Err(status >> 8),
        Err(_) => Err(NOT_PREPARED),
    }
}

/// The body of `--tell`: prints the credentials and privileges of its process.
pub fn tell() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status.lines() {
        if let Some((name, value)) = line.split_once(':')
            && (name.starts_with("Cap") || name == "NoNewPrivs")
        {
            println!("{name}={}", value.trim());
        }
    }
    let mut stack = [0u64; 2];
    let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_STACK, 0, stack.as_mut_ptr());
    let mut death = 0u32;
    let _ = prctl(libc::PR_GET_PDEATHSIG, [(&raw mut death) as u64, 0, 0, 0]);
    let number = |value: Result<u64, i32>| value.map_or(-1, |v| v as i64);
    for (name, value) in [
        ("uid", number(sc!(SYS_getuid))),
        ("euid", number(sc!(SYS_geteuid))),
        ("fsuid", number(sc!(SYS_setfsuid, -1i64))),
        ("gid", number(sc!(SYS_getgid))),
        ("egid", number(sc!(SYS_getegid))),
        ("secure", sys::auxval(libc::AT_SECURE) as i64),
        ("aux_euid", sys::auxval(libc::AT_EUID) as i64),
        ("aux_egid", sys::auxval(libc::AT_EGID) as i64),
        ("dumpable", number(prctl(libc::PR_GET_DUMPABLE, [0; 4]))),
        ("keep", number(prctl(libc::PR_GET_KEEPCAPS, [0; 4]))),
        ("layout", number(sc!(SYS_personality, 0xffff_ffffu32))),
        ("stack", stack[0] as i64),
        ("death", death.into()),
    ] {
        println!("{name}={value}");
    }
}

type Told = HashMap<String, String>;

/// A copy of this program with mode `perm`, owned by user and group `owner`.
pub fn program(name: &str, perm: u32, owner: u32) -> Result<String, String> {
    let copy = format!("{}/{name}", scratch());
    std::fs::copy("/proc/self/exe", &copy).map_err(|e| e.to_string())?;
    ok!(sc!(SYS_chown, path(&copy), owner, owner));
    ok!(sc!(SYS_chmod, path(&copy), perm));
    Ok(copy)
}

/// Replaces the caller by a program with one argument; returns only if that fails.
pub fn exec(file: &str, argument: &str) -> i32 {
    let argv = [path(file), path(argument), 0];
    sc!(SYS_execve, path(file), argv.as_ptr(), [0u64].as_ptr())
        .err()
        .unwrap_or(0)
}

/// The lines printed by a program that a child executes after `prepare`.
fn told(file: &str, prepare: impl FnOnce() -> Result<u64, i32>) -> Result<Told, String> {
    let (from, to) = ok!(sys::pipe(libc::O_CLOEXEC));
    let pid = ok!(sys::fork());
    if pid == 0 {
        let _ = sc!(SYS_dup2, to, 1);
        if let Err(errno) = prepare() {
            sys::exit(100 + errno);
        }
        sys::exit(exec(file, "--tell"));
    }
    ok!(sys::close(to));
    let mut text = Vec::new();
    let mut piece = [0; 1024];
    // Reads up to the last line, not to end of file: a process that shares descriptors with the child may have the
    // pipe, too.
    while let Ok(n @ 1..) = sys::read(from, &mut piece) {
        text.extend_from_slice(&piece[..n]);
        if String::from_utf8_lossy(&text).contains("\ndeath=") && text.ends_with(b"\n") {
            break;
        }
    }
    ok!(sys::close(from));
    let (_, status) = ok!(sys::wait(pid as i64, 0));
    is!(status, 0);
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

/// Fails unless the program has printed these values.
macro_rules! said {
    ($told:expr, $($name:ident $value:expr),* $(,)?) => {
        let told = $told;
        $(is!((stringify!($name), told.get(stringify!($name)).cloned().unwrap_or_default()),
            (stringify!($name), $value.to_string()));)*
    };
}

fn caps(bits: u64) -> String {
    format!("{bits:016x}")
}

/// Root's capabilities on this system.
fn all() -> u64 {
    capget()[1]
}

/// Settings that an unprivileged user may choose for the programs that it executes.
fn choose() -> Result<u64, i32> {
    become_user()?;
    sc!(SYS_personality, 0x0004_0000)?;
    prctl(libc::PR_SET_PDEATHSIG, [libc::SIGUSR1 as u64, 0, 0, 0])?;
    let stack = [64u64 << 20, libc::RLIM_INFINITY];
    sc!(SYS_prlimit64, 0, libc::RLIMIT_STACK, stack.as_ptr(), 0)
}

/// A child that shares with the caller what `flags` select, and sleeps. It ends with the test.
fn sharing(flags: i32) -> Result<u64, i32> {
    let pid = sc!(SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0)?;
    if pid == 0 {
        loop {
            nap_us(1_000_000);
        }
    }
    Ok(pid)
}

/// Tries `f` as a user with only these capabilities, and as root without them.
fn each_way(
    caps: &[u64],
    errno: i32,
    mut f: impl FnMut() -> Result<u64, i32>,
) -> Result<(), String> {
    is!(as_child(|| become_user_with(caps), &mut f), Ok(0));
    is!(as_child(|| drop_caps(caps), &mut f), Err(errno));
    is!(as_child(become_user, f), Err(errno));
    Ok(())
}

/// A file with mode `perm` that belongs neither to root nor to the user.
fn anothers(perm: u32) -> Result<u64, String> {
    let name = format!("{}/another", scratch());
    ok!(sys::close(ok!(sys::open(&name, libc::O_CREAT, 0o600))));
    ok!(sc!(SYS_chown, path(&name), 7, 7));
    ok!(sc!(SYS_chmod, path(&name), perm));
    Ok(path(&name))
}

fn opened(name: u64, flags: i32) -> Result<u64, i32> {
    let fd = sc!(SYS_open, name, flags, 0)?;
    sc!(SYS_close, fd)
}

tests! { "priv";
    exec_of_a_plain_program_keeps_what_was_chosen {
        let told = told(&program("plain", 0o755, 0)?, choose)?;
        said!(told, uid USER, euid USER, secure 0, dumpable 1, layout 0x0004_0000, stack 64 << 20,
            death libc::SIGUSR1, CapPrm caps(0), CapEff caps(0), CapBnd caps(all()));
    }
    exec_of_a_set_user_id_program {
        let told = told(&program("root", 0o4755, 0)?, choose)?;
        said!(told, uid USER, euid 0, fsuid 0, gid USER, egid USER, aux_euid 0, secure 1, dumpable 0, layout 0,
            stack 8 << 20, death 0, CapPrm caps(all()), CapEff caps(all()), CapInh caps(0), CapAmb caps(0));
    }
    exec_of_another_users_program {
        let told = told(&program("seven", 0o6755, 7)?, choose)?;
        said!(told, uid USER, euid 7, fsuid 7, gid USER, egid 7, aux_egid 7, secure 1, dumpable 0, layout 0, death 0,
            CapPrm caps(0));
    }
    a_group_bit_without_execution_gives_nothing {
        let told = told(&program("locked", 0o2745, 7)?, choose)?;
        said!(told, egid USER, secure 0, dumpable 1, layout 0x0004_0000);
    }
    a_program_of_ones_own_is_no_privilege_but_has_a_plain_layout {
        let told = told(&program("own", 0o4755, USER)?, choose)?;
        said!(told, euid USER, secure 0, dumpable 1, layout 0, stack 64 << 20, death libc::SIGUSR1);
    }
    no_new_privileges {
        let root = program("root", 0o4755, 0)?;
        let first = told(&root, || { choose()?; prctl(libc::PR_SET_NO_NEW_PRIVS, [1, 0, 0, 0]) })?;
        said!(first, euid USER, secure 0, layout 0x0004_0000, CapPrm caps(0), NoNewPrivs 1);
        // The flag belongs to one thread and is inherited by its children.
        is!(in_child(|| {
            let other = std::thread::spawn(|| prctl(libc::PR_SET_NO_NEW_PRIVS, [1, 0, 0, 0]));
            let set = matches!(other.join(), Ok(Ok(_)));
            first_wrong(&[set, prctl(libc::PR_GET_NO_NEW_PRIVS, [0; 4]) == Ok(0)])
        })?, 0);
    }
    a_mount_may_forbid_privileges {
        let dir = format!("{}/m", scratch());
        ok!(sc!(SYS_mkdir, path(&dir), 0o755));
        ok!(sc!(SYS_mount, path("none"), path(&dir), path("tmpfs"), libc::MS_NOSUID, 0));
        let copy = format!("{dir}/root");
        let done = std::fs::copy("/proc/self/exe", &copy).map_err(|e| e.to_string());
        ok!(sc!(SYS_chmod, path(&copy), 0o4755));
        let told = done.and_then(|_| told(&copy, choose));
        ok!(sc!(SYS_umount2, path(&dir), libc::MNT_DETACH));
        said!(told?, euid USER, secure 0, layout 0x0004_0000);
    }
    a_scripts_bits_give_nothing_its_interpreters_do {
        let make = |name: &str, interpreter: &str, perm: u32| -> Result<String, String> {
            let script = format!("{interpreter}.{name}");
            std::fs::write(&script, format!("#!{interpreter}\n")).map_err(|e| e.to_string())?;
            ok!(sc!(SYS_chmod, path(&script), perm));
            Ok(script)
        };
        let plain = program("plain", 0o755, 0)?;
        // The interpreter's argument is the script's path, whose name selects the action.
        let script = make("--tell", &plain, 0o4755)?;
        said!(told(&script, choose)?, euid USER, secure 0, layout 0x0004_0000);
        ok!(sc!(SYS_chmod, path(&plain), 0o4755));
        ok!(sc!(SYS_chmod, path(&script), 0o755));
        said!(told(&script, choose)?, euid 0, secure 1, layout 0);
    }
    who_shares_the_directories_gets_no_privilege {
        let root = program("root", 0o4755, 0)?;
        let first = told(&root, || { choose()?; sharing(libc::CLONE_FS) })?;
        // The privileges are denied, and the program is as protected as if it had been granted them.
        said!(first, euid USER, aux_euid USER, secure 1, layout 0, CapPrm caps(0), CapEff caps(0));
        // The other way round: the child that was created executes the program.
        let second = told(&root, || {
            let parent = sc!(SYS_getpid)?;
            choose()?;
            match sc!(SYS_clone, libc::CLONE_FS | libc::SIGCHLD, 0, 0, 0, 0)? {
                0 => Ok(parent),
                pid => { let (_, status) = sys::wait(pid as i64, 0)?; sys::exit(status >> 8) }
            }
        })?;
        said!(second, euid USER, secure 1);
        // A process with CAP_SETUID gets the file's owner as its user, but gains no capability.
        let seven = program("seven", 0o4755, 7)?;
        let third = told(&seven, || { drop_caps(&[cap::KILL])?; sharing(libc::CLONE_FS) })?;
        said!(third, euid 7, CapPrm caps(all() & !(1 << cap::KILL)), CapEff caps(0));
    }
    threads_do_not_count_as_sharers_nor_do_the_dead {
        let root = program("root", 0o4755, 0)?;
        let threads = told(&root, || {
            choose()?;
            std::thread::spawn(|| loop { nap_us(1_000_000) });
            Ok(0)
        })?;
        said!(threads, euid 0, secure 1);
        let dead = told(&root, || {
            choose()?;
            let pid = sharing(libc::CLONE_FS)?;
            sc!(SYS_kill, pid, libc::SIGKILL)?;
            sys::wait(pid as i64, 0)?;
            Ok(0)
        })?;
        said!(dead, euid 0);
        let apart = told(&root, || { choose()?; sharing(libc::CLONE_FS)?; sc!(SYS_unshare, libc::CLONE_FS) })?;
        said!(apart, euid 0);
    }
    a_program_has_descriptors_of_its_own {
        let wait = program("wait", 0o755, 0)?;
        let (gate, open) = ok!(sys::pipe(0));
        let (done, ready) = ok!(sys::pipe(libc::O_CLOEXEC));
        let pid = ok!(sc!(SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0));
        if pid == 0 {
            // This changes the table that both share; exec gives the new program a table of its own.
            let _ = sc!(SYS_dup2, gate, 0);
            sys::exit(exec(&wait, "--wait"));
        }
        // The new program's table has no close-on-exec descriptor; this process's table has one.
        holds!(soon(|| !std::path::Path::new(&format!("/proc/{pid}/fd/{ready}")).exists()));
        holds!(std::path::Path::new(&format!("/proc/self/fd/{ready}")).exists());
        let new = ok!(sys::open("/", 0, 0));
        holds!(!std::path::Path::new(&format!("/proc/{pid}/fd/{new}")).exists());
        ok!(sc!(SYS_kill, pid, libc::SIGKILL));
        let _ = (done, open);
    }
    what_one_may_not_read_is_hidden_when_it_runs {
        said!(told(&program("secret", 0o711, 0)?, choose)?, euid USER, secure 0, dumpable 0, death libc::SIGUSR1);
    }
    keeping_capabilities_ends_with_exec {
        let plain = program("plain", 0o755, 0)?;
        let told = told(&plain, || { prctl(libc::PR_SET_KEEPCAPS, [1, 0, 0, 0])?; become_user() })?;
        said!(told, keep 0, CapPrm caps(0), CapEff caps(0), secure 0);
    }
    the_bounding_set_limits_exec {
        let root = program("root", 0o4755, 0)?;
        let told = told(&root, || {
            prctl(libc::PR_CAPBSET_DROP, [cap::KILL, 0, 0, 0])?;
            if prctl(libc::PR_CAPBSET_READ, [cap::KILL, 0, 0, 0]) != Ok(0) { return Err(99); }
            choose()
        })?;
        let rest = caps(all() & !(1 << cap::KILL));
        said!(told, euid 0, CapPrm rest, CapEff rest, CapBnd rest);
    }
    ambient_capabilities_are_kept_by_plain_programs_alone {
        const KILL: u64 = 1 << cap::KILL;
        let ambient = || {
            become_user_with(&[cap::KILL])?;
            if prctl(libc::PR_CAP_AMBIENT, [libc::PR_CAP_AMBIENT_RAISE as u64, cap::KILL, 0, 0]) != Err(libc::EPERM) { return Err(98); }
            capset(KILL, KILL, KILL)?;
            prctl(libc::PR_CAP_AMBIENT, [libc::PR_CAP_AMBIENT_RAISE as u64, cap::KILL, 0, 0])?;
            if prctl(libc::PR_CAP_AMBIENT, [libc::PR_CAP_AMBIENT_IS_SET as u64, cap::KILL, 0, 0]) != Ok(1) { return Err(97); }
            Ok(0)
        };
        let plain = told(&program("plain", 0o755, 0)?, ambient)?;
        said!(plain, euid USER, secure 0, CapPrm caps(KILL), CapEff caps(KILL), CapInh caps(KILL), CapAmb caps(KILL));
        let seven = told(&program("seven", 0o4755, 7)?, ambient)?;
        said!(seven, euid 7, CapPrm caps(0), CapEff caps(0), CapInh caps(KILL), CapAmb caps(0));
        let lowered = told(&program("plain", 0o755, 0)?, || {
            ambient()?;
            prctl(libc::PR_CAP_AMBIENT, [libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0, 0, 0])
        })?;
        said!(lowered, CapPrm caps(0), CapInh caps(KILL));
    }
    root_without_its_treatment {
        const NOROOT: u64 = 1;
        let told = told(&program("plain", 0o755, 0)?, || prctl(libc::PR_SET_SECUREBITS, [NOROOT, 0, 0, 0]))?;
        said!(told, uid 0, euid 0, CapPrm caps(0), CapEff caps(0), secure 0);
        is!(in_child(|| first_wrong(&[
            prctl(libc::PR_SET_SECUREBITS, [0x22, 0, 0, 0]).is_ok(),
            prctl(libc::PR_GET_SECUREBITS, [0; 4]) == Ok(0x22),
            prctl(libc::PR_SET_SECUREBITS, [0, 0, 0, 0]) == Err(libc::EPERM),
            prctl(libc::PR_SET_KEEPCAPS, [1, 0, 0, 0]) == Err(libc::EPERM),
            prctl(libc::PR_SET_SECUREBITS, [0x122, 0, 0, 0]) == Err(libc::EPERM),
        ]))?, 0);
    }
    sets_follow_the_user {
        is!(in_child(|| {
            let all = all();
            first_wrong(&[
                sc!(SYS_setresuid, -1i64, USER, -1i64).is_ok() && capget() == [0, all, 0],
                sc!(SYS_setresuid, -1i64, 0, -1i64).is_ok() && capget() == [all, all, 0],
                sc!(SYS_setfsuid, USER).is_ok() && capget() == [all & !0x1_0800_021f, all, 0],
                sc!(SYS_setfsuid, 0).is_ok() && capget() == [all, all, 0],
                prctl(libc::PR_SET_KEEPCAPS, [1, 0, 0, 0]).is_ok(),
                sc!(SYS_setresuid, USER, USER, USER).is_ok() && capget() == [0, all, 0],
                capset(all, all, 0).is_ok() && sc!(SYS_setresuid, 7, 7, 7).is_ok(),
                capset(0, all | 1 << 63, 0).is_ok() && capget() == [0, all, 0],
                capset(1, 1, 0).is_ok() && capset(1, 3, 0) == Err(libc::EPERM),
                capset(1, 0, 0) == Err(libc::EPERM) && capset(0, 0, 2) == Err(libc::EPERM),
                prctl(libc::PR_CAPBSET_DROP, [1, 0, 0, 0]) == Err(libc::EPERM),
                prctl(libc::PR_CAP_AMBIENT, [2, 1, 1, 0]) == Err(libc::EINVAL),
                prctl(libc::PR_CAP_AMBIENT, [4, 1, 0, 0]) == Err(libc::EINVAL),
                prctl(libc::PR_CAP_AMBIENT, [2, 64, 0, 0]) == Err(libc::EINVAL),
            ])
        })?, 0);
    }
    older_forms_of_the_sets {
        is!(in_child(|| {
            let mut header = [0x1998_0330u32, 0];
            let mut words = [7u32; 4];
            let got = sc!(SYS_capget, header.as_mut_ptr(), words.as_mut_ptr());
            let low = all() as u32;
            let mut minus = [0x2008_0522u32, u32::MAX];
            first_wrong(&[
                got.is_ok() && words == [low, low, 0, 7],
                sc!(SYS_capset, header.as_ptr(), words.as_ptr()).is_ok(),
                capget() == [low.into(), low.into(), 0],
                sc!(SYS_capget, header.as_mut_ptr(), 0).is_ok(),
                sc!(SYS_capget, minus.as_mut_ptr(), words.as_mut_ptr()) == Err(libc::EINVAL),
            ])
        })?, 0);
    }
    a_change_of_user_hides_the_memory {
        let dumpable = || prctl(libc::PR_GET_DUMPABLE, [0; 4]);
        let set = |death: u64| prctl(libc::PR_SET_PDEATHSIG, [death, 0, 0, 0]);
        let death = || { let mut now = 0u32; let _ = prctl(libc::PR_GET_PDEATHSIG, [(&raw mut now) as u64, 0, 0, 0]); now };
        is!(in_child(|| first_wrong(&[
            dumpable() == Ok(1) && set(10).is_ok(),
            // Setting the same ids again changes nothing.
            sc!(SYS_setresuid, 0, 0, 0).is_ok() && dumpable() == Ok(1) && death() == 10,
            sc!(SYS_setfsgid, 7).is_ok() && dumpable() == Ok(0) && death() == 0,
            in_child(|| i32::from(dumpable() != Ok(0))) == Ok(0),
            prctl(libc::PR_SET_DUMPABLE, [1, 0, 0, 0]).is_ok() && dumpable() == Ok(1),
            sc!(SYS_setresuid, USER, USER, USER).is_ok() && dumpable() == Ok(0),
        ]))?, 0);
    }
    files_by_capability {
        let dir = scratch();
        let stay = u64::from(u32::MAX);
        let file = anothers(0o600)?;
        each_way(&[cap::CHOWN], libc::EPERM, || sc!(SYS_chown, file, stay, 8))?;
        ok!(sc!(SYS_chown, file, 7, 7));
        // Both capabilities permit reading; the tests of writing and of searching distinguish them.
        is!(as_child(|| drop_caps(&[cap::DAC_OVERRIDE, cap::DAC_READ_SEARCH]), || opened(file, libc::O_RDONLY)), Err(libc::EACCES));
        is!(as_child(|| become_user_with(&[cap::DAC_READ_SEARCH]), || opened(file, libc::O_RDONLY)), Ok(0));
        is!(as_child(|| become_user_with(&[cap::DAC_READ_SEARCH]), || opened(file, libc::O_RDWR)), Err(libc::EACCES));
        each_way(&[cap::DAC_OVERRIDE], libc::EACCES, || opened(file, libc::O_RDWR))?;
        each_way(&[cap::FOWNER], libc::EPERM, || sc!(SYS_chmod, file, 0o600))?;
        each_way(&[cap::FOWNER], libc::EPERM, || { let times = [1u64; 4]; sc!(SYS_utimensat, libc::AT_FDCWD, file, times.as_ptr(), 0) })?;
        each_way(&[cap::MKNOD], libc::EPERM, || {
            let name = path(&format!("/tmp/node.{}", sc!(SYS_getpid)?));
            sc!(SYS_mknod, name, libc::S_IFCHR | 0o600, 0x103)?;
            sc!(SYS_unlink, name)
        })?;
        each_way(&[cap::SYS_CHROOT], libc::EPERM, || sc!(SYS_chroot, path("/tmp")))?;
        // A set-group-ID bit for a foreign group is kept only with CAP_FSETID.
        let own = format!("{dir}/own");
        ok!(sys::close(ok!(sys::open(&own, libc::O_CREAT, 0o600))));
        ok!(sc!(SYS_chown, path(&own), USER, 7));
        let keeps = || {
            sc!(SYS_chmod, path(&own), 0o2755)?;
            let mut stat = sys::zeroed_stat();
            sc!(SYS_stat, path(&own), &raw mut stat)?;
            if stat.st_mode & 0o2000 != 0 { Ok(0) } else { Err(libc::EPERM) }
        };
        each_way(&[cap::FSETID], libc::EPERM, keeps)?;
        // The sticky bit.
        let shared = format!("{dir}/shared");
        ok!(sc!(SYS_mkdir, path(&shared), 0o777));
        ok!(sc!(SYS_chown, path(&shared), 7, 7));
        ok!(sc!(SYS_chmod, path(&shared), 0o1777));
        let again = || -> Result<u64, i32> {
            let name = path(&format!("{shared}/x"));
            sc!(SYS_unlink, name)
        };
        for right in [true, false] {
            let name = format!("{shared}/x");
            ok!(sys::close(ok!(sys::open(&name, libc::O_CREAT, 0o600))));
            ok!(sc!(SYS_chown, path(&name), 7, 7));
            let answer = if right { as_child(|| become_user_with(&[cap::FOWNER]), again) } else { as_child(|| drop_caps(&[cap::FOWNER]), again) };
            is!(answer, if right { Ok(0) } else { Err(libc::EPERM) });
        }
    }
    root_without_capabilities_is_a_user_like_others {
        let file = anothers(0o600)?;
        is!(as_child(|| capset(0, 0, 0), || opened(file, libc::O_RDONLY)), Err(libc::EACCES));
        is!(as_child(|| capset(0, 0, 0), || sc!(SYS_setuid, USER)), Err(libc::EPERM));
        // access(2) checks with the capabilities that would be effective for the real user.
        is!(as_child(|| become_user_with(&[cap::DAC_OVERRIDE]), || sc!(SYS_access, file, libc::R_OK)), Err(libc::EACCES));
        is!(as_child(|| { let all = capget()[1]; capset(0, all, 0) }, || sc!(SYS_access, file, libc::R_OK)), Ok(0));
    }
    the_system_by_capability {
        each_way(&[cap::SETUID], libc::EPERM, || sc!(SYS_setresuid, 9, 9, 9).map(|_| 0))?;
        each_way(&[cap::SETGID], libc::EPERM, || sc!(SYS_setresgid, 9, 9, 9).map(|_| 0))?;
        each_way(&[cap::SETGID], libc::EPERM, || sc!(SYS_setgroups, 1, [9u32].as_ptr()))?;
        each_way(&[cap::SETPCAP], libc::EPERM, || prctl(libc::PR_CAPBSET_DROP, [cap::SYS_TIME, 0, 0, 0]))?;
        each_way(&[cap::SETPCAP], libc::EPERM, || prctl(libc::PR_SET_SECUREBITS, [0x10, 0, 0, 0]))?;
        each_way(&[cap::IPC_LOCK], libc::EPERM, || {
            sc!(SYS_prlimit64, 0, libc::RLIMIT_MEMLOCK, [0u64, 0].as_ptr(), 0)?;
            sc!(SYS_mlock, anon(1)?, PAGE)
        })?;
        each_way(&[cap::SYS_ADMIN], libc::EPERM, || {
            let mut name = [0u8; 390];
            sc!(SYS_uname, name.as_mut_ptr())?;
            let len = name[65..130].iter().position(|&b| b == 0).unwrap_or(0);
            sc!(SYS_sethostname, name[65..].as_ptr(), len)
        })?;
        let dir = path(&scratch());
        each_way(&[cap::SYS_ADMIN], libc::EPERM, || {
            sc!(SYS_mount, path("none"), dir, path("tmpfs"), 0, 0)?;
            sc!(SYS_umount2, dir, 0)
        })?;
        each_way(&[cap::SYS_BOOT], libc::EPERM, || sc!(SYS_reboot, 0xfee1_deadu32, 0x2812_1969, 0, 0))?;
        each_way(&[cap::SYS_NICE], libc::EACCES, || sc!(SYS_setpriority, 0, 0, -1i64))?;
        each_way(&[cap::SYS_RESOURCE], libc::EPERM, || {
            sc!(SYS_prlimit64, 0, libc::RLIMIT_CORE, [0u64, 0].as_ptr(), 0)?;
            sc!(SYS_prlimit64, 0, libc::RLIMIT_CORE, [0u64, 1].as_ptr(), 0)
        })?;
        each_way(&[cap::SYS_TIME], libc::EPERM, || {
            let mut now = [0u64; 2];
            sc!(SYS_clock_gettime, libc::CLOCK_REALTIME, now.as_mut_ptr())?;
            sc!(SYS_clock_settime, libc::CLOCK_REALTIME, now.as_ptr())
        })?;
        // /dev/mem belongs to a group, too.
        is!(as_child(|| drop_caps(&[cap::SYS_RAWIO]), || opened(path("/dev/mem"), libc::O_RDONLY)), Err(libc::EPERM));
    }
    a_program_with_more_rights_is_not_its_users_to_schedule {
        let root = program("root", 0o4755, 0)?;
        let (from, _to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = (sc!(SYS_dup2, from, 0), become_user());
            sys::exit(exec(&root, "--wait"));
        }
        let status = format!("/proc/{pid}/status");
        holds!(soon(|| std::fs::read_to_string(&status).is_ok_and(|text| text.contains("Uid:\t1000\t0"))));
        // It may be signalled.
        is!(as_child(become_user, || sc!(SYS_kill, pid, 0)), Ok(0));
        each_way(&[cap::SYS_NICE], libc::EPERM, || sc!(SYS_setpriority, 0, pid, 5))?;
        each_way(&[cap::SYS_NICE], libc::EPERM, || sc!(SYS_sched_setaffinity, pid, 8, [1u64].as_ptr()))?;
        each_way(&[cap::SYS_NICE], libc::EPERM, || sc!(SYS_sched_setscheduler, pid, 0, [0u32].as_ptr()))?;
        each_way(&[cap::SYS_NICE], libc::EPERM, || sc!(SYS_sched_setparam, pid, [0u32].as_ptr()))?;
        is!(as_child(become_user, || sc!(SYS_setpriority, 0, pid, -1i64)), Err(libc::EACCES));
        ok!(sc!(SYS_kill, pid, libc::SIGKILL));
    }
    a_refusal_does_not_keep_setpriority_from_others {
        let (from, to) = ok!(sys::pipe(0));
        let mut pids = Vec::new();
        for uid in [USER, 7, USER] {
            let group = pids.first().copied().unwrap_or(0);
            let pid = ok!(sys::fork());
            if pid == 0 {
                let _ = sc!(SYS_setpgid, 0, group);
                let _ = sc!(SYS_setresuid, uid, uid, uid);
                let _ = prctl(libc::PR_SET_PDEATHSIG, [libc::SIGKILL as u64, 0, 0, 0]);
                let _ = sys::write(to, b"x");
                loop { nap_us(1_000_000) }
            }
            is!(ok!(sys::read(from, &mut [0])), 1);
            pids.push(pid);
        }
        is!(as_child(become_user, || sc!(SYS_setpriority, libc::PRIO_PGRP, pids[0], 5)), Err(libc::EPERM));
        // The call gives twenty less what was set.
        let now: Vec<_> = pids.iter().map(|pid| sc!(SYS_getpriority, libc::PRIO_PROCESS, *pid)).collect();
        is!(now, [Ok(15), Ok(20), Ok(15)]);
        ok!(sc!(SYS_kill, -(pids[0] as i64), libc::SIGKILL));
    }
    idle_is_left_by_right_or_by_limit {
        let choose = |policy: i32| sc!(SYS_sched_setscheduler, 0, policy, [0u32].as_ptr());
        let leave = |policy: i32| { choose(libc::SCHED_IDLE)?; choose(policy) };
        each_way(&[cap::SYS_NICE], libc::EPERM, || leave(libc::SCHED_OTHER))?;
        is!(as_child(become_user, || { leave(libc::SCHED_IDLE)?; sc!(SYS_sched_setparam, 0, [0u32].as_ptr()) }), Ok(0));
        if sc!(SYS_prlimit64, 0, libc::RLIMIT_NICE, [20u64, 20].as_ptr(), 0) == Err(libc::EPERM) {
            return Err("skip: root may not raise a limit".into());
        }
        let limited = |nice: u64, limit: u64| move || {
            sc!(SYS_prlimit64, 0, libc::RLIMIT_NICE, [limit, limit].as_ptr(), 0)?;
            sc!(SYS_setpriority, 0, 0, nice)?;
            become_user()
        };
        is!(as_child(limited(0, 19), || leave(libc::SCHED_BATCH)), Err(libc::EPERM));
        is!(as_child(limited(0, 20), || leave(libc::SCHED_BATCH)), Ok(0));
        is!(as_child(limited(1, 19), || leave(libc::SCHED_OTHER)), Ok(0));
    }
    others_by_capability {
        // A process of another user: its limits, its priority, its scheduling.
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = sc!(SYS_setresuid, 7, 7, 7);
            loop { nap_us(1_000_000) }
        }
        let status = format!("/proc/{pid}/status");
        holds!(soon(|| std::fs::read_to_string(&status).is_ok_and(|text| text.contains("Uid:\t7\t7"))));
        each_way(&[cap::KILL], libc::EPERM, || sc!(SYS_kill, pid, 0))?;
        each_way(&[cap::SYS_RESOURCE], libc::EPERM, || sc!(SYS_prlimit64, pid, libc::RLIMIT_CORE, 0, [0u64; 2].as_mut_ptr()))?;
        each_way(&[cap::SYS_NICE], libc::EPERM, || sc!(SYS_setpriority, 0, pid, 5))?;
        each_way(&[cap::SYS_NICE], libc::EPERM, || sc!(SYS_sched_setaffinity, pid, 8, [1u64].as_ptr()))?;
        each_way(&[cap::SYS_NICE], libc::EPERM, || sc!(SYS_sched_setscheduler, pid, 0, [0u32].as_ptr()))?;
        ok!(sc!(SYS_kill, pid, libc::SIGKILL));
    }
}
