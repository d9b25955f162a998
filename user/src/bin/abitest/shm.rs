//! System V memory.

use crate::harness::*;
use user::sys;

const CREATE: i32 = libc::IPC_CREAT;
const EXCLUSIVE: i32 = libc::IPC_EXCL;
const STAT_ANY: i32 = 15;
const REMOVED: u32 = 0o1000;

fn get(key: i32, size: u64, flags: i32) -> Result<i32, i32> {
    sc!(SYS_shmget, key, size, flags).map(|id| id as i32)
}

fn private(size: u64) -> Result<i32, i32> {
    get(libc::IPC_PRIVATE, size, 0o600)
}

fn at(id: i32, addr: u64, flags: i32) -> Result<u64, i32> {
    sc!(SYS_shmat, id, addr, flags)
}

fn detach(addr: u64) -> Result<u64, i32> {
    sc!(SYS_shmdt, addr)
}

fn control(id: i32, cmd: i32) -> Result<u64, i32> {
    sc!(SYS_shmctl, id, cmd, 0)
}

fn remove(id: i32) -> Result<u64, i32> {
    control(id, libc::IPC_RMID)
}

/// The words of a `struct shmid64_ds`.
fn words(id: i32, cmd: i32) -> Result<(u64, [u64; 14]), i32> {
    let mut ds = [0; 14];
    sc!(SYS_shmctl, id, cmd, ds.as_mut_ptr()).map(|value| (value, ds))
}

fn stat(id: i32) -> Result<[u64; 14], i32> {
    words(id, libc::IPC_STAT).map(|(_, ds)| ds)
}

fn attached(id: i32) -> Result<u64, i32> {
    stat(id).map(|ds| ds[11])
}

fn mode(id: i32) -> Result<u32, i32> {
    stat(id).map(|ds| (ds[2] >> 32) as u32)
}

/// A key that no other test has.
fn key() -> i32 {
    0x5a00_0000 | std::process::id() as i32
}

/// Runs `f` in a child; returns what the child's exit status is.
fn in_child(f: impl FnOnce() -> i32) -> Result<i32, i32> {
    match sys::fork()? {
        0 => sys::exit(f()),
        pid => sys::wait(pid as i64, 0).map(|(_, status)| status >> 8),
    }
}

tests! { "shm";
    a_key_leads_to_one_segment {
        let id = ok!(get(key(), 5000, CREATE | 0o640));
        is!(ok!(get(key(), 5000, 0)), id);
        is!(ok!(get(key(), 0, CREATE)), id);
        fails!(get(key(), 5001, 0), EINVAL);
        fails!(get(key(), 1, CREATE | EXCLUSIVE | 0o600), EEXIST);
        ok!(remove(id));
        fails!(get(key(), 1, 0), ENOENT);
        let next = ok!(get(key(), 1, CREATE | 0o600));
        holds!(next != id);
        fails!(stat(id), EINVAL);
        ok!(remove(next));
    }

    private_segments_have_no_key {
        let (a, b) = (ok!(private(1)), ok!(get(libc::IPC_PRIVATE, 1, EXCLUSIVE)));
        holds!(a != b);
        is!(ok!(stat(a))[0] as i32, 0);
        ok!(remove(a));
        ok!(remove(b));
    }

    sizes_have_bounds {
        fails!(private(0), EINVAL);
        fails!(private(u64::MAX), EINVAL);
        fails!(get(libc::IPC_PRIVATE, PAGE, libc::SHM_HUGETLB | 0o600), ENOMEM);
        fails!(at(-1, 0, 0), EINVAL);
        fails!(stat(-1), EINVAL);
        fails!(stat(i32::MAX), EINVAL);
    }

    the_record_says_what_was_done {
        let id = ok!(get(libc::IPC_PRIVATE, 5000, 0o641));
        let ds = ok!(stat(id));
        let me = u64::from(std::process::id());
        is!(((ds[2] >> 32) as u32, ds[6], ds[10] & 0xffff_ffff, ds[11]), (0o641, 5000, me, 0));
        is!((ds[7], ds[8], ds[10] >> 32), (0, 0, 0));
        holds!(ds[9] > 1_000_000_000);
        let a = ok!(at(id, 0, 0));
        let ds = ok!(stat(id));
        is!((ds[10] >> 32, ds[11]), (me, 1));
        holds!(ds[7] >= ds[9] && ds[8] == 0);
        ok!(detach(a));
        let ds = ok!(stat(id));
        holds!(ds[8] >= ds[7] && ds[11] == 0);
        ok!(remove(id));
    }

    processes_share_what_they_store {
        let id = ok!(private(3 * PAGE));
        let a = ok!(at(id, 0, 0));
        is!(sys::peek64(a + 2 * PAGE), 0);
        is!(ok!(in_child(|| { sys::poke64(a + 2 * PAGE, 77); 0 })), 0);
        is!(sys::peek64(a + 2 * PAGE), 77);
        let b = ok!(at(id, 0, 0));
        sys::poke64(b, 5);
        is!((sys::peek64(a), ok!(attached(id))), (5, 2));
        ok!(detach(a));
        ok!(detach(b));
        let c = ok!(at(id, 0, libc::SHM_RDONLY));
        is!((sys::peek64(c), sys::peek64(c + 2 * PAGE)), (5, 77));
        holds!(sys::catch(|| sys::poke64(c, 1)).is_some());
        fails!(sc!(SYS_mprotect, c, PAGE, libc::PROT_READ | libc::PROT_WRITE), EACCES);
        ok!(remove(id));
    }

    the_count_follows_forks_and_ends {
        let id = ok!(private(PAGE));
        let a = ok!(at(id, 0, 0));
        is!(ok!(in_child(|| attached(id).map_or(99, |n| n as i32))), 2);
        is!(ok!(attached(id)), 1);
        let status = ok!(in_child(|| {
            let both = at(id, 0, 0).and_then(|_| attached(id));
            both.map_or(99, |n| n as i32)
        }));
        is!((status, ok!(attached(id))), (3, 1));
        is!(ok!(in_child(|| {
            let done = detach(a).and_then(|_| attached(id));
            done.map_or(99, |n| n as i32)
        })), 1);
        ok!(detach(a));
        ok!(remove(id));
    }

    the_count_follows_exec {
        let id = ok!(private(PAGE));
        let _a = ok!(at(id, 0, 0));
        let argv = [path("/bin/true"), 0];
        is!(ok!(in_child(|| {
            let _ = sc!(SYS_execve, path("/bin/true"), argv.as_ptr(), 0);
            9
        })), 0);
        is!(ok!(attached(id)), 1);
        ok!(remove(id));
    }

    a_removed_segment_stays_until_the_last_detachment {
        let id = ok!(get(key(), PAGE, CREATE | 0o600));
        let a = ok!(at(id, 0, 0));
        sys::poke64(a, 9);
        ok!(remove(id));
        is!(ok!(mode(id)) & REMOVED, REMOVED);
        is!(ok!(stat(id))[0] as i32, 0);
        fails!(get(key(), 1, 0), ENOENT);
        let b = ok!(at(id, 0, 0));
        is!(sys::peek64(b), 9);
        ok!(remove(id));
        ok!(detach(b));
        is!(ok!(attached(id)), 1);
        ok!(detach(a));
        fails!(stat(id), EINVAL);
        fails!(at(id, 0, 0), EINVAL);
        holds!(sys::catch(|| sys::peek64(a)).is_some());
    }

    a_removed_segment_goes_with_its_last_process {
        let id = ok!(private(PAGE));
        is!(ok!(in_child(|| {
            let done = at(id, 0, 0).and_then(|_| remove(id));
            i32::from(done.is_err() || stat(id).is_err())
        })), 0);
        fails!(stat(id), EINVAL);
    }

    addresses_are_checked {
        let id = ok!(private(2 * PAGE));
        let a = ok!(at(id, 0, 0));
        fails!(at(id, a, 0), EINVAL);
        fails!(at(id, a + PAGE, 0), EINVAL);
        fails!(at(id, a + 1, 0), EINVAL);
        fails!(at(id, a + 1, libc::SHM_RND), EINVAL);
        fails!(at(id, 0, libc::SHM_REMAP), EINVAL);
        is!(ok!(at(id, a + 1, libc::SHM_REMAP | libc::SHM_RND)), a);
        is!(ok!(attached(id)), 1);
        ok!(detach(a));
        is!(ok!(at(id, a + 100, libc::SHM_RND)), a);
        fails!(detach(a + 1), EINVAL);
        fails!(detach(a + PAGE), EINVAL);
        ok!(detach(a));
        fails!(detach(a), EINVAL);
        is!(ok!(attached(id)), 0);
        ok!(remove(id));
    }

    what_is_left_of_an_attachment_is_detached {
        let id = ok!(private(4 * PAGE));
        let a = ok!(at(id, 0, 0));
        ok!(sc!(SYS_mprotect, a + 2 * PAGE, PAGE, libc::PROT_READ));
        ok!(sys::munmap(a, PAGE));
        let other = ok!(sys::mmap(a, PAGE, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED, -1, 0));
        sys::poke(other, 1);
        ok!(detach(a));
        is!((ok!(attached(id)), sys::peek(other)), (0, 1));
        holds!((1..4).all(|n| sys::catch(|| sys::peek(a + n * PAGE)).is_some()));
        let b = ok!(at(id, 0, 0));
        ok!(sys::munmap(b, 4 * PAGE));
        is!(ok!(attached(id)), 0);
        ok!(remove(id));
    }

    what_mremap_has_grown_is_detached_with_the_first_part {
        let id = ok!(private(4 * PAGE));
        let grown = || {
            let room = sys::mmap(0, 16 * PAGE, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)?;
            sys::munmap(room, 16 * PAGE)?;
            let a = at(id, room, 0)?;
            sc!(SYS_mremap, a, 4 * PAGE, 8 * PAGE, 0)
        };
        let read_only = |a: u64, from: u64, to: u64| {
            sc!(SYS_mprotect, a + from * PAGE, (to - from) * PAGE, libc::PROT_READ).map(|_| ())
        };
        let unmap = |a: u64, from: u64, to: u64| sys::munmap(a + from * PAGE, (to - from) * PAGE).map(|_| ());
        let keep = |_, _, _| Ok(());
        type Change<'a> = &'a dyn Fn(u64, u64, u64) -> Result<(), i32>;
        let changes: [(Change<'_>, u64, u64, &str); 8] = [
            (&keep, 0, 1, "........"),
            (&read_only, 2, 3, "...mmmmm"),
            (&read_only, 2, 4, "....mmmm"),
            (&read_only, 5, 6, ".....mmm"),
            (&unmap, 0, 2, "........"),
            (&unmap, 0, 4, "........"),
            (&unmap, 1, 2, "..mmmmmm"),
            (&unmap, 4, 5, ".....mmm"),
        ];
        for (change, from, to, left) in changes {
            let a = ok!(grown());
            ok!(change(a, from, to));
            ok!(detach(a));
            let mut there = [0u8; 1];
            let pages = (0..8).map(|n| sc!(SYS_mincore, a + n * PAGE, PAGE, there.as_mut_ptr()));
            let shown: String = pages.map(|page| if page.is_ok() { 'm' } else { '.' }).collect();
            is!((from, to, shown.as_str()), (from, to, left));
            ok!(sys::munmap(a, 8 * PAGE));
        }
        is!(ok!(attached(id)), 0);
        ok!(remove(id));
    }

    a_moved_attachment_counts_once {
        let id = ok!(private(2 * PAGE));
        let a = ok!(at(id, 0, 0));
        sys::poke64(a + PAGE, 3);
        let to = ok!(sys::mmap(0, 2 * PAGE, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        is!(ok!(sc!(SYS_mremap, a, 2 * PAGE, 2 * PAGE, flags, to)), to);
        is!((sys::peek64(to + PAGE), ok!(attached(id))), (3, 1));
        ok!(detach(to));
        is!(ok!(attached(id)), 0);
        ok!(remove(id));
    }

    others_may_what_the_mode_says {
        let key = key();
        let id = ok!(get(key, PAGE, CREATE | 0o604));
        is!(ok!(in_child(|| {
            if sys::become_user(1234, &[]).is_err() {
                return 1;
            }
            let denied = |r: Result<u64, i32>| r == Err(libc::EACCES);
            let checks = [
                denied(at(id, 0, 0)),
                at(id, 0, libc::SHM_RDONLY).is_ok(),
                stat(id).is_ok(),
                get(key, 1, 0o400) == Ok(id),
                get(key, 1, 0o600) == Err(libc::EACCES),
                remove(id) == Err(libc::EPERM),
                control(id, libc::SHM_LOCK) == Err(libc::EPERM),
                control(id, libc::SHM_UNLOCK) == Err(libc::EPERM),
            ];
            checks.iter().position(|ok| !ok).map_or(0, |at| at as i32 + 2)
        })), 0);
        ok!(remove(id));
    }

    owners_change {
        let id = ok!(private(PAGE));
        let mut ds = ok!(stat(id));
        ds[0] = ds[0] & 0xffff_ffff | 1234 << 32;
        ds[1] = ds[1] >> 32 << 32 | 55;
        ds[2] = ds[2] & 0xffff_ffff | 0o7_7420 << 32;
        ok!(sc!(SYS_shmctl, id, libc::IPC_SET, ds.as_ptr()));
        let new = ok!(stat(id));
        is!((new[0] >> 32, new[1], new[2] >> 32), (1234, 55, 0o420));
        ds[0] |= u64::from(u32::MAX) << 32;
        fails!(sc!(SYS_shmctl, id, libc::IPC_SET, ds.as_ptr()), EINVAL);
        fails!(sc!(SYS_shmctl, id, libc::IPC_SET, 8), EFAULT);
        is!(ok!(in_child(|| {
            let done = sys::become_user(1234, &[]).and_then(|_| remove(id));
            i32::from(done.is_err())
        })), 0);
        fails!(stat(id), EINVAL);
    }

    locked_segments_are_shown {
        let id = ok!(private(PAGE));
        ok!(control(id, libc::SHM_LOCK));
        is!(ok!(mode(id)), 0o2600);
        ok!(control(id, libc::SHM_LOCK));
        ok!(control(id, libc::SHM_UNLOCK));
        is!(ok!(mode(id)), 0o600);
        ok!(remove(id));
    }

    totals_and_indices {
        let id = ok!(private(3 * PAGE));
        let a = ok!(at(id, 0, 0));
        sys::poke(a, 1);
        let mut info = [0u64; 9];
        let highest = ok!(sc!(SYS_shmctl, 0, libc::IPC_INFO, info.as_mut_ptr()));
        is!((info[1], info[2]), (1, 4096));
        let mut totals = [0u64; 6];
        is!(ok!(sc!(SYS_shmctl, 0, 14, totals.as_mut_ptr())), highest);
        holds!(totals[0] >= 1 && totals[1] >= 3 && totals[2] >= 1);
        let index = id as u64 & 0x7fff;
        holds!(index <= highest);
        for cmd in [13, STAT_ANY] {
            let (found, ds) = ok!(words(index as i32, cmd));
            is!((found, ds[6]), (id as u64, 3 * PAGE));
        }
        fails!(words(32000, 13), EINVAL);
        is!(ok!(words(id, 13)).0, id as u64);
        fails!(control(id, 99), EINVAL);
        fails!(control(id, -1), EINVAL);
        ok!(remove(id));
    }

    proc_shows_a_segment {
        let id = ok!(get(key(), 5000, CREATE | 0o640));
        let a = ok!(at(id, 0, 0));
        sys::poke(a, 1);
        let text = ok!(std::fs::read_to_string("/proc/sysvipc/shm").map_err(|_| 0));
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(&id.to_string()));
        let words: Vec<&str> = line.unwrap_or("").split_whitespace().collect();
        is!(words.len(), 16);
        is!(words[..4], [&key().to_string(), &id.to_string(), "640", "5000"]);
        is!((words[6], words[14], words[15]), ("1", "4096", "0"));
        let maps = ok!(std::fs::read_to_string("/proc/self/maps").map_err(|_| 0));
        let name = format!("/SYSV{:08x} (deleted)", key());
        let line = maps.lines().find(|line| line.starts_with(&format!("{a:x}")));
        let line = line.unwrap_or("");
        holds!(line.ends_with(&name) && line.contains(&format!(" {id} ")) && line.contains("rw-s"));
        ok!(remove(id));
    }

    threads_attach_beside_a_removal {
        for _ in 0..100 {
            let id = ok!(private(PAGE));
            let other = std::thread::spawn(move || {
                let a = at(id, 0, 0)?;
                sys::poke(a, 1);
                detach(a)
            });
            ok!(remove(id));
            let done = other.join().unwrap_or(Err(0));
            holds!(matches!(done, Ok(_) | Err(libc::EINVAL) | Err(libc::EIDRM)));
            fails!(stat(id), EINVAL);
        }
    }
}
