//! What one process can read of another, and of the kernel.

use std::os::unix::fs::MetadataExt;

use crate::harness::*;
use crate::privileges::{
    USER, as_child, become_user, become_user_with, cap, drop_caps, exec, first_wrong, program,
};
use crate::process::burn_number;
use user::sys;

/// A child that executes `prepare` and sleeps; it ends at the latest with the test.
fn sleeper(prepare: impl FnOnce() -> Result<u64, i32>) -> Result<u64, String> {
    let (from, to) = ok!(sys::pipe(0));
    let pid = ok!(sys::fork());
    if pid == 0 {
        let fine = prepare().is_ok();
        let _ = sys::write(to, &[u8::from(fine)]);
        loop {
            nap_us(1_000_000);
        }
    }
    let mut fine = [0];
    ok!(sys::read(from, &mut fine));
    is!(fine, [1]);
    ok!(sys::close(from));
    ok!(sys::close(to));
    Ok(pid)
}

/// Files in /proc/PID that only a process with the rights of ptrace over PID may read.
const FILES: [&str; 6] = ["auxv", "maps", "smaps", "smaps_rollup", "environ", "io"];
const LINKS: [&str; 3] = ["exe", "cwd", "root"];

fn link(name: &str) -> Result<u64, i32> {
    let mut target = [0u8; 256];
    sc!(SYS_readlink, path(name), target.as_mut_ptr(), target.len())
}

/// The first bytes of a file.
fn head(name: &str) -> Result<Vec<u8>, i32> {
    let fd = sys::open(name, libc::O_RDONLY, 0)?;
    let mut bytes = vec![0; 4096];
    let got = sys::read(fd, &mut bytes);
    let _ = sys::close(fd);
    bytes.truncate(got?);
    Ok(bytes)
}

/// The fields of /proc/PID/stat that follow the name; the state is the third field.
fn fields(text: &str) -> Vec<u64> {
    let rest = text.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace()
        .map(|word| word.parse().unwrap_or(0))
        .collect()
}

fn stat(pid: u64) -> Vec<u64> {
    fields(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default())
}

/// The addresses in /proc/PID/stat: code and stack; data, heap, arguments and environment.
fn addresses(pid: u64) -> (Vec<u64>, Vec<u64>) {
    addresses_in(&stat(pid))
}

fn addresses_in(all: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let field = |n: usize| all.get(n - 3).copied().unwrap_or(9);
    (
        vec![field(26), field(27)],
        [28, 45, 46, 47, 48, 49, 50, 51].map(field).to_vec(),
    )
}

/// Checks that every way to read another process succeeds if `may`, and otherwise fails with EACCES. Returns the number
/// of the first way that differs, as an exit status.
fn looks(pid: u64, may: bool) -> i32 {
    let at = |name: &str| format!("/proc/{pid}/{name}");
    let right = |answer: Result<(), i32>| match answer {
        Ok(()) => may,
        Err(errno) => !may && errno == libc::EACCES,
    };
    let mut steps: Vec<bool> = FILES
        .iter()
        .map(|name| right(head(&at(name)).map(|_| ())))
        .collect();
    steps.extend(LINKS.iter().map(|name| right(link(&at(name)).map(|_| ()))));
    steps.push(right(link(&at("fd/0")).map(|_| ())));
    steps.push(right(
        std::fs::read_dir(at("fd"))
            .map(|_| ())
            .map_err(|_| libc::EACCES),
    ));
    let (code, rest) = addresses(pid);
    steps.push((code == [1, 1]) != may);
    steps.push(rest.iter().all(|&address| address == 0) != may);
    // Every user may read these.
    steps.push(head(&at("status")).is_ok() && head(&at("statm")).is_ok());
    steps.push(head(&at("cmdline")).is_ok() && head(&at("comm")).is_ok());
    first_wrong(&steps)
}

fn robust(pid: u64) -> Result<u64, i32> {
    let mut head = [0u64; 2];
    let base = head.as_mut_ptr();
    sc!(SYS_get_robust_list, pid, base, base.wrapping_add(1))
}

fn as_exit(status: i32) -> Result<u64, i32> {
    if status == 0 { Ok(0) } else { Err(status) }
}

/// Checks with [`looks`] from a child that has executed `prepare`.
fn look_as(prepare: impl FnOnce() -> Result<u64, i32>, pid: u64, may: bool) -> Result<u64, i32> {
    as_child(prepare, || as_exit(looks(pid, may)))
}

fn dumpable(on: u64) -> Result<u64, i32> {
    sc!(SYS_prctl, libc::PR_SET_DUMPABLE, on)
}

fn visible_user() -> Result<u64, i32> {
    become_user()?;
    dumpable(1)
}

/// The owner of a file in the directory of a process.
fn owner(pid: u64, name: &str) -> u32 {
    std::fs::symlink_metadata(format!("/proc/{pid}/{name}")).map_or(9, |m| m.uid())
}

/// Whether text contains a number that is a kernel address.
fn has_kernel_address(text: &[u8]) -> bool {
    // Higher values are small negative numbers and masks.
    let kernel = 0xffff_8000_0000_0000..0xffff_ffff_ff00_0000;
    text.split(|b| !b.is_ascii_hexdigit())
        .filter(|word| word.len() == 16)
        .filter_map(|word| u64::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok())
        .any(|number| kernel.contains(&number))
}

/// Visits the files below a directory without following links.
fn files_below(dir: &std::path::Path, depth: u32, visit: &mut impl FnMut(&std::path::Path)) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        // The directories of processes have a test of their own.
        if name
            .to_string_lossy()
            .starts_with(|c: char| c.is_ascii_digit())
            && depth == 0
        {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < 4 => files_below(&entry.path(), depth + 1, visit),
            Ok(kind) if kind.is_file() => visit(&entry.path()),
            _ => {}
        }
    }
}

/// A child, its directory in /proc, and a file there, as pid and descriptors.
type Opened = (u64, u64, u64);

/// Files opened in the /proc directory of a process fail with ESRCH after that process has been reaped, even if its pid
/// is reused.
fn says_gone((_, dir, file): Opened) -> Result<(), String> {
    let mut word = [0u8; 8];
    fails!(sc!(SYS_write, file, b"7".as_ptr(), 1), ESRCH);
    fails!(
        sc!(SYS_pread64, file, word.as_mut_ptr(), word.len(), 0),
        ESRCH
    );
    for name in ["stat", "status", "oom_score_adj", "no such name"] {
        fails!(sc!(SYS_openat, dir, path(name), libc::O_RDONLY, 0), ESRCH);
    }
    fails!(
        sc!(
            SYS_readlinkat,
            dir,
            path("cwd"),
            word.as_mut_ptr(),
            word.len()
        ),
        ESRCH
    );
    Ok(())
}

tests! { "look";
    auxv_is_what_the_program_got {
        let bytes = std::fs::read("/proc/self/auxv").map_err(|e| e.to_string())?;
        let pairs: Vec<[u64; 2]> = bytes.chunks(16)
            .map(|pair| [0, 8].map(|at| pair.get(at..at + 8).map_or(9, |word| u64::from_le_bytes(word.try_into().unwrap_or_default()))))
            .collect();
        is!(pairs.last(), Some(&[libc::AT_NULL, 0]));
        for kind in [libc::AT_PAGESZ, libc::AT_PHDR, libc::AT_ENTRY, libc::AT_RANDOM, libc::AT_UID, libc::AT_SECURE, libc::AT_EXECFN] {
            is!(pairs.iter().find(|pair| pair[0] == kind).map(|pair| pair[1]), Some(sys::auxval(kind)));
        }
        is!(pairs.iter().filter(|pair| pair[0] == libc::AT_NULL).count(), 1);
        is!(head("/proc/self/wchan"), Ok(b"0".to_vec()));
        is!(head("/proc/sys/kernel/domainname"), Ok(b"(none)\n".to_vec()));
    }
    a_title_replaces_the_arguments {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let field = |n: usize| stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(n - 3)?.parse::<u64>().ok());
        let (Some(start), Some(end)) = (field(48), field(49)) else {
            return Err("no arguments in stat".into());
        };
        // As setproctitle(3) does: a title, its end, and blanks up to the end of the arguments.
        let mut title = vec![b' '; (end - start) as usize];
        title[..2].copy_from_slice(b"y\0");
        let (from, to) = ok!(sys::pipe(0));
        is!(ok!(sys::write(to, &title)), title.len());
        is!(ok!(sc!(SYS_read, from, start, title.len())), title.len() as u64);
        is!(std::fs::read("/proc/self/cmdline").unwrap_or_default(), b"y\0");
    }
    what_was_opened_of_the_dead_is_no_heirs {
        const DEAD: usize = 32;
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        let mut opened: Vec<Opened> = Vec::new();
        for _ in 0..DEAD {
            let pid = sleeper(|| Ok(0))?;
            let dir = ok!(sys::open(&format!("/proc/{pid}"), libc::O_RDONLY | libc::O_DIRECTORY, 0)) as u64;
            let file = ok!(sc!(SYS_openat, dir, path("oom_score_adj"), libc::O_RDWR, 0));
            opened.push((pid, dir, file));
        }
        for &(pid, ..) in &opened {
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGKILL));
        }
        says_gone(opened[0])?;
        // Pids wrap at a power of two, 32768 or more.
        for _ in 0..32_768 - 4 * DEAD { burn_number(); }
        for _ in 0..8 * DEAD {
            let pid = sleeper(|| Ok(0))?;
            if let Some(&dead) = opened.iter().find(|dead| dead.0 == pid) {
                says_gone(dead)?;
                is!(ok!(head(&format!("/proc/{pid}/oom_score_adj"))), b"0\n");
            }
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            ok!(sys::wait(pid as i64, 0));
        }
    }
    a_user_sees_its_own_processes_and_root_all {
        let (roots, users) = (sleeper(|| Ok(0))?, sleeper(visible_user)?);
        is!(look_as(|| Ok(0), roots, true), Ok(0));
        is!(look_as(|| Ok(0), users, true), Ok(0));
        is!(look_as(visible_user, users, true), Ok(0));
        is!(look_as(visible_user, roots, false), Ok(0));
        is!(as_child(visible_user, || robust(users)), Ok(0));
        is!(as_child(visible_user, || robust(roots)), Err(libc::EPERM));
        // All three group ids and all three user ids must equal those of the process.
        for change in [
            || sc!(SYS_setresgid, USER, USER, 7),
            || sc!(SYS_setresgid, USER, 7, USER),
            || sc!(SYS_setresgid, 7, USER, USER),
        ] {
            let other = sleeper(|| { change()?; sc!(SYS_setresuid, USER, USER, USER)?; dumpable(1) })?;
            // The directory of descriptors may be listed by its owner.
            is!(as_child(visible_user, || link(&format!("/proc/{other}/exe"))), Err(libc::EACCES));
            is!(as_child(visible_user, || head(&format!("/proc/{other}/maps")).map(|_| 0)), Err(libc::EACCES));
        }
        for ids in [[USER, USER, 7], [USER, 7, USER], [7, USER, USER]] {
            let other = sleeper(|| { sc!(SYS_setresgid, USER, USER, USER)?; sc!(SYS_setresuid, ids[0], ids[1], ids[2])?; dumpable(1) })?;
            is!(as_child(visible_user, || link(&format!("/proc/{other}/exe"))), Err(libc::EACCES));
            is!(as_child(visible_user, || head(&format!("/proc/{other}/maps")).map(|_| 0)), Err(libc::EACCES));
        }
    }
    hidden_memory_is_shown_to_root_alone {
        let hidden = sleeper(|| { become_user()?; dumpable(0) })?;
        is!(look_as(visible_user, hidden, false), Ok(0));
        is!(look_as(|| Ok(0), hidden, true), Ok(0));
        is!(look_as(|| drop_caps(&[cap::SYS_PTRACE]), hidden, false).is_err(), true);
        is!(as_child(|| drop_caps(&[cap::SYS_PTRACE]), || head(&format!("/proc/{hidden}/maps")).map(|_| 0)), Err(libc::EACCES));
        is!(as_child(|| drop_caps(&[cap::SYS_PTRACE]), || robust(hidden)), Err(libc::EPERM));
        // The files belong to root, except those that every user may list.
        is!((owner(hidden, "maps"), owner(hidden, "fd"), owner(hidden, "exe"), owner(hidden, "status")), (0, 0, 0, 0));
        is!((owner(hidden, ""), owner(hidden, "task")), (USER, USER));
        let shown = sleeper(visible_user)?;
        is!((owner(shown, "maps"), owner(shown, "fd"), owner(shown, "exe"), owner(shown, "")), (USER, USER, USER, USER));
    }
    what_is_hidden_is_hidden_from_its_own_files_alone {
        // A process may read its own files, as far as their owner root permits it.
        is!(as_child(become_user, || {
            let own = |name: &str| format!("/proc/self/{name}");
            let (code, rest) = addresses(sc!(SYS_getpid)?);
            as_exit(first_wrong(&[
                head(&own("maps")).is_ok(),
                head(&own("environ")) == Err(libc::EACCES),
                link(&own("exe")).is_ok(),
                std::fs::read_dir(own("fd")).is_ok_and(|fds| fds.count() > 2),
                link(&own("fd/0")).is_ok(),
                code[0] > 1 && rest[0] != 0,
            ]))
        }), Ok(0));
    }
    more_power_is_not_shown_to_less {
        let strong = sleeper(|| become_user_with(&[cap::KILL]))?;
        let maps = format!("/proc/{strong}/maps");
        is!(look_as(visible_user, strong, false).is_err(), true);
        is!(as_child(visible_user, || head(&maps).map(|_| 0)), Err(libc::EACCES));
        is!(look_as(|| become_user_with(&[cap::KILL]), strong, true), Ok(0));
        // For files the effective capabilities decide, for calls the permitted ones.
        let idle = || { become_user_with(&[cap::KILL])?; let set = [0u32, 1 << cap::KILL, 0, 0, 0, 0]; sc!(SYS_capset, [0x2008_0522u32, 0].as_ptr(), set.as_ptr()) };
        is!(as_child(idle, || head(&maps).map(|_| 0)), Err(libc::EACCES));
        is!(as_child(idle, || robust(strong)), Ok(0));
        // For files the file-system uid decides, too.
        let filed = || { sc!(SYS_setresgid, USER, USER, USER)?; sc!(SYS_setresuid, 0, USER, 0)?; dumpable(1) };
        let users = sleeper(visible_user)?;
        is!(as_child(filed, || head(&format!("/proc/{users}/maps")).map(|_| 0)), Ok(0));
        is!(as_child(filed, || robust(users)), Err(libc::EPERM));
        // A user with the capability to read all processes.
        is!(look_as(|| become_user_with(&[cap::SYS_PTRACE, cap::DAC_READ_SEARCH]), strong, true), Ok(0));
    }
    an_open_file_does_not_show_the_next_program {
        let root = program("root", 0o4755, 0)?;
        is!(as_child(visible_user, || {
            let (gate, open) = sys::pipe(0)?;
            let (done, ready) = sys::pipe(libc::O_CLOEXEC)?;
            let pid = sys::fork()?;
            if pid == 0 {
                sys::close(done)?;
                sc!(SYS_dup2, gate, 0)?;
                sys::read(gate, &mut [0])?;
                sys::exit(exec(&root, "--wait"));
            }
            sys::close(ready)?;
            let at = |name: &str| format!("/proc/{pid}/{name}");
            let maps = sys::open(&at("maps"), libc::O_RDONLY, 0)?;
            let seen = sys::open(&at("maps"), libc::O_RDONLY, 0)?;
            let environ = sys::open(&at("environ"), libc::O_RDONLY, 0)?;
            let mut bytes = [0; 4096];
            let before = sys::read(seen, &mut bytes)? > 100;
            let shown = looks(pid, true);
            sys::write(open, b"x")?;
            // Both ends of the pipe have been closed: the child runs the new program.
            let ran = sys::read(done, &mut bytes) == Ok(0);
            let steps = [
                before && shown == 0,
                ran,
                sys::read(maps, &mut bytes) == Ok(0),
                sys::read(environ, &mut bytes) == Ok(0),
                sc!(SYS_pread64, seen, bytes.as_mut_ptr(), bytes.len(), 0) == Ok(0),
                looks(pid, false) == 0,
                sc!(SYS_kill, pid, 0) == Ok(0),
            ];
            as_exit(first_wrong(&steps))
        }), Ok(0));
    }
    threads_are_judged_by_their_own_users {
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            std::thread::spawn(move || {
                let fine = visible_user().is_ok();
                let tid = sc!(SYS_gettid).unwrap_or(0);
                let _ = sys::write(to, &if fine { tid } else { 0 }.to_ne_bytes());
                loop { nap_us(1_000_000) }
            });
            loop { nap_us(1_000_000) }
        }
        let mut tid = [0; 8];
        ok!(sys::read(from, &mut tid));
        let tid = u64::from_ne_bytes(tid);
        holds!(tid > 0);
        is!(as_child(visible_user, || link(&format!("/proc/{pid}/task/{tid}/exe")).map(|_| 0)), Ok(0));
        is!(as_child(visible_user, || link(&format!("/proc/{pid}/exe"))), Err(libc::EACCES));
        is!((owner(pid, &format!("task/{tid}/maps")), owner(pid, "maps")), (USER, 0));
    }
    what_execve_closes_is_shown_to_nobody_else {
        const FD: u64 = 200;
        let plain = program("plain", 0o755, 0)?;
        let secret = ok!(sys::open("/proc/version", libc::O_RDONLY, 0));
        for _ in 0..8 {
            let (gate, open) = ok!(sys::pipe(libc::O_CLOEXEC));
            let pid = ok!(sys::fork());
            if pid == 0 {
                ok!(sc!(SYS_dup3, secret, FD, libc::O_CLOEXEC));
                // So much memory that the end of it takes a while, in which others run.
                let memory = ok!(anon(4096));
                for page in 0..4096 { sys::poke(memory + page * PAGE, 1); }
                ok!(sc!(SYS_dup2, gate, 0));
                ok!(become_user());
                sys::exit(exec(&plain, "--wait"));
            }
            let name = path(&format!("/proc/{pid}/fd/{FD}"));
            let seen = as_child(visible_user, || loop {
                let mut target = [0u8; 64];
                match sc!(SYS_readlink, name, target.as_mut_ptr(), target.len()) {
                    Ok(_) => return Err(1),
                    // The new program can be looked at.
                    Err(libc::ENOENT) => return Ok(0),
                    Err(libc::EACCES) => {}
                    Err(errno) => return Err(errno),
                }
            });
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            ok!(sys::wait(pid as i64, 0));
            ok!(sys::close(gate));
            ok!(sys::close(open));
            is!(seen, Ok(0));
        }
    }
    no_name_of_a_thread_forges_a_line_of_status {
        ok!(sc!(SYS_prctl, libc::PR_SET_NAME, path("\nUid:\t7\t7\\7\t7")));
        let text = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let status = text("status");
        let uid = ok!(sc!(SYS_getuid));
        is!(status.lines().next(), Some("Name:\t\\nUid:\t7\t7\\\\7\t7"));
        is!(status.lines().find(|line| line.starts_with("Uid:")), Some(&*format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}")));
        // As on Linux, these show the name as it is.
        is!(text("comm"), "\nUid:\t7\t7\\7\t7\n");
        holds!(text("stat").contains("(\nUid:\t7\t7\\7\t7)"));
    }
    no_name_of_a_file_forges_a_line_of_maps {
        let name = format!("{}/a\nb c\\d", scratch());
        ok!(std::fs::write(&name, [1; 8]).map_err(|_| libc::EIO));
        let fd = ok!(sys::open(&name, libc::O_RDONLY, 0));
        let at = ok!(sys::mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let line = maps.lines().find(|line| line.starts_with(&format!("{at:08x}-"))).unwrap_or_default();
        is!(line.rsplit('/').next(), Some("a\\012b c\\d"));
        holds!(!maps.lines().any(|line| line.starts_with("b c")));
    }
    what_an_open_file_shows_is_for_its_opener {
        if std::fs::metadata("/proc/pantala").is_err() {
            return Err("skip: Linux asks what the reader may see".into());
        }
        let (roots, users) = (sleeper(|| Ok(0))?, sleeper(visible_user)?);
        let names = [format!("/proc/{roots}/stat"), "/proc/pantala/accounts".into(), "/proc/pantala/sections".into()];
        let open = || names.each_ref().map(|name| sys::open(name, libc::O_RDONLY, 0).unwrap_or(-1));
        let texts = |fds: [i32; 3]| fds.map(|fd| {
            let mut bytes = vec![0; 4096];
            let got = sys::read(fd, &mut bytes).unwrap_or(0);
            String::from_utf8_lossy(&bytes[..got]).into_owned()
        });
        let by_root = open();
        ok!(sc!(SYS_setresuid, -1i64, USER, -1i64));
        let by_user = open();
        let of_root_by_user = texts(by_root);
        ok!(sc!(SYS_setresuid, -1i64, 0, -1i64));
        let [stat, accounts, sections] = texts(by_user);
        let (code, rest) = addresses_in(&fields(&stat));
        is!((code, rest), (vec![1, 1], vec![0; 8]));
        // The account of the real user alone.
        holds!(accounts.contains("user=0 ") && !accounts.contains(&format!("user={USER} ")));
        holds!(!sections.contains("fn="));
        // To see addresses, opener and reader must have the right.
        let [stat, accounts, _] = of_root_by_user;
        is!(addresses_in(&fields(&stat)).0, [1, 1]);
        holds!(accounts.contains(&format!("user={USER} ")));
        let [stat, ..] = texts(open());
        holds!(addresses_in(&fields(&stat)).0[0] > 1);
        ok!(sc!(SYS_kill, users, libc::SIGKILL));
    }
    the_dead_tell_no_addresses {
        let dying = ok!(sys::fork());
        if dying == 0 {
            let memory = ok!(anon(4096));
            for page in 0..4096 { sys::poke(memory + page * PAGE, 1); }
            ok!(become_user());
            sys::exit(0);
        }
        let seen = as_child(visible_user, || loop {
            let text = std::fs::read_to_string(format!("/proc/{dying}/stat")).map_err(|_| libc::EIO)?;
            let (code, rest) = addresses_in(&fields(&text));
            // Code is said to be at 1 while its address is hidden.
            if code[0] > 1 || code[1] > 1 || rest != [0; 8] {
                return Err(1);
            }
            if text.contains(") Z ") {
                return Ok(0);
            }
        });
        is!(seen, Ok(0));
    }
    kernel_addresses_are_for_root {
        is!(as_child(visible_user, || {
            let mut wrong = 0;
            let mut visit = |name: &std::path::Path| {
                let Ok(fd) = sys::open(&name.to_string_lossy(), libc::O_RDONLY | libc::O_NONBLOCK, 0) else { return };
                let mut bytes = vec![0; 16384];
                let got = sys::read(fd, &mut bytes).unwrap_or(0);
                let _ = sys::close(fd);
                if has_kernel_address(&bytes[..got]) {
                    println!("{} tells an address", name.display());
                    wrong += 1;
                }
            };
            files_below(std::path::Path::new("/proc"), 0, &mut visit);
            files_below(std::path::Path::new("/sys/kernel"), 1, &mut visit);
            as_exit(wrong)
        }), Ok(0));
        // Nor may other users read the debugging files.
        is!(as_child(visible_user, || std::fs::read_dir("/sys/kernel/debug").map(|_| 0).map_err(|e| e.raw_os_error().unwrap_or(0))), Err(libc::EACCES));
    }
    the_log_is_for_those_with_the_right {
        const READ_ALL: u64 = 3;
        const CLEAR: u64 = 5;
        const SIZE: u64 = 10;
        let restrict = |on: &str| std::fs::write("/proc/sys/kernel/dmesg_restrict", on).map(|()| 0).map_err(|e| e.raw_os_error().unwrap_or(0));
        let read = || { let mut text = [0u8; 64]; sc!(SYS_syslog, READ_ALL, text.as_mut_ptr(), text.len()).map(|_| 0) };
        let device = |flags: i32| sys::open("/dev/kmsg", flags | libc::O_NONBLOCK, 0).map(|_| 0);
        is!(std::fs::read_to_string("/proc/sys/kernel/dmesg_restrict").ok(), Some("1\n".to_owned()));
        is!(as_child(become_user, read), Err(libc::EPERM));
        is!(as_child(become_user, || sc!(SYS_syslog, SIZE, 0, 0).map(|_| 0)), Err(libc::EPERM));
        is!(as_child(become_user, || device(libc::O_RDONLY)), Err(libc::EPERM));
        is!(as_child(become_user, || device(libc::O_WRONLY)), Err(libc::EACCES));
        is!(as_child(|| become_user_with(&[cap::SYSLOG]), read), Ok(0));
        is!(as_child(|| become_user_with(&[cap::SYS_ADMIN]), read), Ok(0));
        is!(as_child(|| drop_caps(&[cap::SYSLOG, cap::SYS_ADMIN]), || device(libc::O_WRONLY)), Ok(0));
        is!(as_child(|| drop_caps(&[cap::SYSLOG, cap::SYS_ADMIN]), || device(libc::O_RDWR)), Err(libc::EPERM));
        is!(as_child(|| drop_caps(&[cap::SYS_ADMIN]), || restrict("0")), Err(libc::EPERM));
        ok!(restrict("0"));
        let open = [
            as_child(become_user, read),
            as_child(become_user, || sc!(SYS_syslog, SIZE, 0, 0).map(|_| 0)),
            as_child(become_user, || device(libc::O_RDONLY)),
            as_child(become_user, || sc!(SYS_syslog, CLEAR, 0, 0)),
        ];
        ok!(restrict("1"));
        is!(open, [Ok(0), Ok(0), Ok(0), Err(libc::EPERM)]);
        is!(restrict("2"), Err(libc::EINVAL));
    }
}
