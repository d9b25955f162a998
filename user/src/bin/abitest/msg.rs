//! System V message queues.

use std::thread::{self, JoinHandle};

use user::sys;

const CREATE: i32 = libc::IPC_CREAT;
const NO_WAIT: i32 = libc::IPC_NOWAIT;
const NOERROR: i32 = libc::MSG_NOERROR;
const EXCEPT: i32 = libc::MSG_EXCEPT;
const COPY: i32 = libc::MSG_COPY;
const MS: u64 = 1_000_000;

fn get(key: i32, flags: i32) -> Result<i32, i32> {
    sc!(SYS_msgget, key, flags).map(|id| id as i32)
}

fn private() -> Result<i32, i32> {
    get(libc::IPC_PRIVATE, 0o600)
}

fn send(id: i32, kind: i64, text: &[u8], flags: i32) -> Result<u64, i32> {
    let mut message = kind.to_le_bytes().to_vec();
    message.extend_from_slice(text);
    sc!(SYS_msgsnd, id, message.as_ptr(), text.len(), flags)
}

/// Type and text of a received message.
fn receive(id: i32, room: usize, kind: i64, flags: i32) -> Result<(i64, Vec<u8>), i32> {
    let mut message = vec![0u8; 8 + room];
    let n = sc!(SYS_msgrcv, id, message.as_mut_ptr(), room, kind, flags)? as usize;
    let kind = i64::from_le_bytes(message[..8].try_into().unwrap_or([0; 8]));
    Ok((kind, message[8..8 + n].to_vec()))
}

/// The text of the first message of a type that is there.
fn now(id: i32, kind: i64) -> Result<String, i32> {
    let (_, text) = receive(id, 100, kind, NO_WAIT)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn control(id: i32, cmd: i32, arg: u64) -> Result<u64, i32> {
    sc!(SYS_msgctl, id, cmd, arg)
}

fn remove(id: i32) -> Result<u64, i32> {
    control(id, libc::IPC_RMID, 0)
}

fn stat(id: i32) -> Result<[u64; 15], i32> {
    let mut ds = [0u64; 15];
    control(id, libc::IPC_STAT, ds.as_mut_ptr() as u64).map(|_| ds)
}

fn key() -> i32 {
    0x5c00_0000 | std::process::id() as i32
}

fn receives(
    id: i32,
    room: usize,
    kind: i64,
    flags: i32,
) -> JoinHandle<Result<(i64, Vec<u8>), i32>> {
    thread::spawn(move || receive(id, room, kind, flags))
}

fn sends(id: i32, kind: i64, len: usize) -> JoinHandle<Result<u64, i32>> {
    thread::spawn(move || send(id, kind, &vec![7; len], 0))
}

/// Time for a thread to begin its wait.
fn settle() {
    sys::nap(30 * MS);
}

/// Waits until a process sleeps.
fn until_asleep(pid: u64) {
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat"));
    while !stat().is_ok_and(|stat| stat.contains(") S ")) {
        sys::nap(MS);
    }
}

fn end<T>(thread: JoinHandle<Result<T, i32>>) -> Result<T, i32> {
    thread.join().unwrap_or(Err(0))
}

fn in_child(f: impl FnOnce() -> i32) -> Result<i32, i32> {
    match sys::fork()? {
        0 => sys::exit(f()),
        pid => sys::wait(pid as i64, 0).map(|(_, status)| status >> 8),
    }
}

extern "C" fn nothing(_: i32) {}

tests! { "msg";
    a_key_leads_to_one_queue {
        let id = ok!(get(key(), CREATE | 0o600));
        is!(ok!(get(key(), 0)), id);
        fails!(get(key(), CREATE | libc::IPC_EXCL), EEXIST);
        ok!(remove(id));
        fails!(get(key(), 0), ENOENT);
        fails!(send(id, 1, b"x", 0), EINVAL);
        fails!(remove(id), EINVAL);
    }

    messages_come_in_order {
        let id = ok!(private());
        for (kind, text) in [(3, "a"), (1, "b"), (2, "c"), (1, "d"), (3, "")] {
            ok!(send(id, kind, text.as_bytes(), 0));
        }
        is!(ok!(receive(id, 10, 0, 0)), (3, b"a".to_vec()));
        is!(ok!(now(id, -2)), "b");
        is!(ok!(now(id, 2)), "c");
        fails!(now(id, 2), ENOMSG);
        is!(ok!(now(id, -5)), "d");
        is!(ok!(receive(id, 0, 3, 0)), (3, vec![]));
        fails!(now(id, 0), ENOMSG);
        ok!(remove(id));
    }

    all_but_a_type {
        let id = ok!(private());
        ok!(send(id, 1, b"one", 0));
        ok!(send(id, 2, b"two", 0));
        is!(ok!(receive(id, 10, 1, EXCEPT | NO_WAIT)), (2, b"two".to_vec()));
        fails!(receive(id, 10, 1, EXCEPT | NO_WAIT), ENOMSG);
        is!(ok!(now(id, i64::MIN)), "one");
        ok!(remove(id));
    }

    long_messages_are_refused_or_cut {
        let id = ok!(private());
        ok!(send(id, 1, b"abcdef", 0));
        fails!(receive(id, 5, 0, 0), E2BIG);
        is!(ok!(receive(id, 5, 0, NOERROR)), (1, b"abcde".to_vec()));
        fails!(now(id, 0), ENOMSG);
        fails!(send(id, 0, b"x", 0), EINVAL);
        fails!(send(id, -1, b"x", 0), EINVAL);
        fails!(sc!(SYS_msgsnd, id, [1u64, 0].as_ptr(), 8193, 0), EINVAL);
        fails!(sc!(SYS_msgsnd, id, 8, 1, 0), EFAULT);
        fails!(sc!(SYS_msgrcv, id, 8, -1i64, 0, 0), EINVAL);
        fails!(sc!(SYS_msgrcv, -1i64, 8, 1, 0, 0), EINVAL);
        ok!(remove(id));
    }

    copies_stay {
        let id = ok!(private());
        ok!(send(id, 5, b"first", 0));
        ok!(send(id, 6, b"second", 0));
        let copied = receive(id, 10, 1, COPY | NO_WAIT);
        if copied == Err(libc::ENOSYS) {
            return Err("skip: no MSG_COPY".into());
        }
        is!(ok!(copied), (6, b"second".to_vec()));
        is!(ok!(receive(id, 10, 0, COPY | NO_WAIT)), (5, b"first".to_vec()));
        fails!(receive(id, 10, 2, COPY | NO_WAIT), ENOMSG);
        fails!(receive(id, 10, 0, COPY), EINVAL);
        fails!(receive(id, 10, 0, COPY | NO_WAIT | EXCEPT), EINVAL);
        is!(ok!(stat(id))[10], 2);
        ok!(remove(id));
    }

    a_receiver_waits {
        let id = ok!(private());
        let (any, four) = (receives(id, 10, 0, 0), receives(id, 10, 4, 0));
        settle();
        ok!(send(id, 4, b"x", 0));
        settle();
        ok!(send(id, 4, b"y", 0));
        let texts = (ok!(end(any)).1, ok!(end(four)).1);
        holds!(texts == (b"x".to_vec(), b"y".to_vec()) || texts == (b"y".to_vec(), b"x".to_vec()));
        let small = receives(id, 1, 0, 0);
        settle();
        ok!(send(id, 1, b"long", 0));
        fails!(end(small), E2BIG);
        is!(ok!(now(id, 0)), "long");
        ok!(remove(id));
    }

    a_sender_waits_for_room {
        let id = ok!(private());
        ok!(send(id, 1, &[0; 8192], 0));
        ok!(send(id, 1, &[0; 8000], 0));
        fails!(send(id, 1, &[0; 8192], NO_WAIT), EAGAIN);
        let waits = sends(id, 2, 8192);
        settle();
        ok!(send(id, 3, &[0; 100], NO_WAIT));
        is!(ok!(stat(id))[10], 3);
        is!(ok!(receive(id, 8192, 0, 0)).1.len(), 8192);
        ok!(end(waits));
        is!(ok!(stat(id))[10], 3);
        ok!(receive(id, 8192, 0, 0));
        is!(ok!(stat(id))[9], 8292);
        ok!(remove(id));
    }

    a_removal_ends_waits {
        let id = ok!(private());
        let receiver = receives(id, 10, 9, 0);
        ok!(send(id, 1, &[0; 8192], 0));
        ok!(send(id, 1, &[0; 8192], 0));
        let sender = sends(id, 1, 1);
        settle();
        ok!(remove(id));
        fails!(end(receiver), EIDRM);
        fails!(end(sender), EIDRM);
    }

    a_signal_ends_a_wait {
        let id = ok!(private());
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, libc::SA_RESTART));
        let timer = [0u64, 0, 0, 20_000];
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0));
        fails!(receive(id, 10, 0, 0), EINTR);
        ok!(send(id, 1, b"x", 0));
        is!(ok!(now(id, 0)), "x");
        ok!(remove(id));
    }

    the_record_says_what_was_done {
        let id = ok!(get(libc::IPC_PRIVATE, 0o640));
        let me = u64::from(std::process::id());
        let ds = ok!(stat(id));
        is!(((ds[2] >> 32) as u32, ds[6], ds[7], ds[9], ds[10], ds[11], ds[12]), (0o640, 0, 0, 0, 0, 16384, 0));
        holds!(ds[8] > 1_000_000_000);
        ok!(send(id, 1, b"12345", 0));
        let ds = ok!(stat(id));
        is!((ds[9], ds[10], ds[12]), (5, 1, me));
        holds!(ds[6] > 1_000_000_000);
        ok!(now(id, 0));
        let ds = ok!(stat(id));
        is!((ds[9], ds[10], ds[12]), (0, 0, me | me << 32));
        ok!(remove(id));
    }

    limits_change {
        let id = ok!(private());
        let mut ds = ok!(stat(id));
        ds[11] = 10;
        ok!(control(id, libc::IPC_SET, ds.as_ptr() as u64));
        ok!(send(id, 1, b"1234567", NO_WAIT));
        fails!(send(id, 1, b"1234", NO_WAIT), EAGAIN);
        let waits = sends(id, 1, 4);
        settle();
        ds[11] = 100;
        ok!(control(id, libc::IPC_SET, ds.as_ptr() as u64));
        ok!(end(waits));
        is!(ok!(stat(id))[10], 2);
        is!(ok!(in_child(|| {
            ds[0] = ds[0] & 0xffff_ffff | 1234 << 32;
            ds[11] = 16384;
            let owned = control(id, libc::IPC_SET, ds.as_ptr() as u64);
            let became = sys::become_user(1234, &[]);
            ds[11] = 16385;
            let raised = control(id, libc::IPC_SET, ds.as_ptr() as u64);
            i32::from(owned.is_err() || became.is_err()) + 4 * raised.map_or_else(|e| i32::from(e != libc::EPERM), |_| 2)
        })), 0);
        ok!(remove(id));
    }

    a_change_of_the_mode_ends_waits {
        let id = ok!(get(libc::IPC_PRIVATE, 0o666));
        let mut ds = ok!(stat(id));
        ds[11] = 10;
        ok!(control(id, libc::IPC_SET, ds.as_ptr() as u64));
        ok!(send(id, 1, b"1234567890", NO_WAIT));
        let by_another = |act: fn(i32) -> Result<(), i32>| match sys::fork() {
            Ok(0) => sys::exit(sys::become_user(1234, &[]).and_then(|_| act(id)).map_or_else(|e| e, |_| 0)),
            pid => pid,
        };
        let sends = ok!(by_another(|id| send(id, 1, b"more", 0).map(|_| ())));
        let receives = ok!(by_another(|id| receive(id, 10, 9, 0).map(|_| ())));
        // Behind the other sender, which must not be kept from its room.
        until_asleep(sends);
        let own = self::sends(id, 2, 4);
        settle();
        // A lower limit alone ends no wait, and sends nothing.
        ds[11] = 5;
        ok!(control(id, libc::IPC_SET, ds.as_ptr() as u64));
        settle();
        is!(ok!(stat(id))[10], 1);
        ds[2] = ds[2] & 0xffff_ffff | 0o600 << 32;
        ok!(control(id, libc::IPC_SET, ds.as_ptr() as u64));
        is!(ok!(sys::wait(receives as i64, 0)).1 >> 8, libc::EACCES);
        is!(ok!(now(id, 1)).len(), 10);
        ok!(end(own));
        is!(ok!(sys::wait(sends as i64, 0)).1 >> 8, libc::EACCES);
        is!((ok!(now(id, 0)), ok!(stat(id))[10]), ("\x07\x07\x07\x07".into(), 0));
        ok!(remove(id));
    }

    empty_messages_are_counted {
        let id = ok!(private());
        let mut ds = ok!(stat(id));
        ds[11] = 2;
        ok!(control(id, libc::IPC_SET, ds.as_ptr() as u64));
        ok!(send(id, 1, b"", NO_WAIT));
        ok!(send(id, 1, b"", NO_WAIT));
        fails!(send(id, 1, b"", NO_WAIT), EAGAIN);
        ok!(remove(id));
    }

    others_may_what_the_mode_says {
        let key = key();
        let id = ok!(get(key, CREATE | 0o604));
        ok!(send(id, 1, b"x", 0));
        is!(ok!(in_child(|| {
            if sys::become_user(1234, &[]).is_err() {
                return 1;
            }
            let checks = [
                send(id, 1, b"y", 0) == Err(libc::EACCES),
                now(id, 0).as_deref() == Ok("x"),
                stat(id).is_ok(),
                get(key, 0o400) == Ok(id),
                get(key, 0o600) == Err(libc::EACCES),
                remove(id) == Err(libc::EPERM),
            ];
            checks.iter().position(|ok| !ok).map_or(0, |at| at as i32 + 2)
        })), 0);
        ok!(remove(id));
    }

    totals_and_indices {
        let id = ok!(private());
        ok!(send(id, 1, b"12345", 0));
        let mut info = [0i32; 8];
        let highest = ok!(control(0, libc::IPC_INFO, info.as_mut_ptr() as u64));
        is!((info[2], info[3], info[4]), (8192, 16384, 32000));
        is!(ok!(control(0, 12, info.as_mut_ptr() as u64)), highest);
        holds!(info[0] >= 1 && info[1] >= 1 && info[6] >= 5);
        let mut ds = [0u64; 15];
        for cmd in [11, 13] {
            is!(ok!(control(id & 0x7fff, cmd, ds.as_mut_ptr() as u64)), id as u64);
            is!(ds[9], 5);
        }
        let text = ok!(std::fs::read_to_string("/proc/sysvipc/msg").map_err(|_| 0));
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(&id.to_string()));
        let words: Vec<&str> = line.unwrap_or("").split_whitespace().collect();
        is!((words.len(), words.get(3), words.get(4)), (14, Some(&"5"), Some(&"1")));
        ok!(remove(id));
    }

    processes_talk {
        let id = ok!(private());
        let child = ok!(sys::fork());
        if child == 0 {
            for n in 0..300u32 {
                if send(id, 1 + i64::from(n % 3), &n.to_le_bytes(), 0).is_err() {
                    sys::exit(1);
                }
            }
            sys::exit(0);
        }
        let mut sum = 0;
        for _ in 0..300 {
            let (_, text) = ok!(receive(id, 4, 0, 0));
            sum += u32::from_le_bytes(text.try_into().unwrap_or([0; 4]));
        }
        is!((sum, ok!(sys::wait(child as i64, 0)).1), (300 * 299 / 2, 0));
        ok!(remove(id));
    }
}
