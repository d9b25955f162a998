//! /proc/sysvipc: the System V objects, a line each.

use ipc::sysv::perm::Perm;
use ipc::sysv::{msg, sem, shm};
use vfs::dynamic::{Fixed, Text};
use vfs::error::Result;
use vfs::put;

use super::tree::Tree;

/// The entries of /proc/sysvipc.
pub const ROOT: Tree = &[
    ("msg", Fixed::File(messages)),
    ("sem", Fixed::File(semaphores)),
    ("shm", Fixed::File(memory)),
];

/// The columns of the users, each after a blank.
fn users(out: &mut Text, p: &Perm) {
    put!(out, " {:5} {:5} {:5} {:5}", p.uid, p.gid, p.cuid, p.cgid);
}

fn times(out: &mut Text, times: &[u64]) {
    for time in times {
        put!(out, " {time:10}");
    }
}

fn memory(out: &mut Text) -> Result<()> {
    out.push(b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid");
    out.push(b"      atime      dtime      ctime                   rss                  swap\n");
    shm::registry().each(|segment| {
        let Some(s) = segment.shown() else { return };
        let p = &s.perm;
        put!(out, "{:10} {:10}  {:4o} {:21}", p.key, p.id, p.mode, s.size);
        put!(out, " {:5} {:5}  {:5}", s.maker, s.last_pid, s.attached);
        users(out, p);
        times(out, &s.times);
        put!(out, " {:21} {:21}\n", segment.resident() * PAGE, 0);
    });
    Ok(())
}

const PAGE: u64 = hal::PAGE_SIZE as u64;

fn semaphores(out: &mut Text) -> Result<()> {
    out.push(
        b"       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n",
    );
    sem::registry().each(|set| {
        let Some(s) = set.shown() else { return };
        let p = &s.perm;
        put!(out, "{:10} {:10}  {:4o} {:10}", p.key, p.id, p.mode, s.len);
        users(out, p);
        times(out, &[s.operated, s.changed]);
        out.push(b"\n");
    });
    Ok(())
}

fn messages(out: &mut Text) -> Result<()> {
    out.push(
        b"       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid",
    );
    out.push(b"      stime      rtime      ctime\n");
    msg::registry().each(|queue| {
        let Some(s) = queue.shown() else { return };
        let p = &s.perm;
        put!(
            out,
            "{:10} {:10}  {:4o}  {:10} {:10}",
            p.key,
            p.id,
            p.mode,
            s.bytes,
            s.messages
        );
        put!(out, " {:5} {:5}", s.last_sender, s.last_receiver);
        users(out, p);
        times(out, &s.times);
        out.push(b"\n");
    });
    Ok(())
}
