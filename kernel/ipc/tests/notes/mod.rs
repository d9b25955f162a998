//! Instances of inotify, the events that are read from them, and what may be watched.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;

use cred::{Charge, Cred};
use hal::uio::IoBuf;
use ipc::inotify::{self, Request};
use task::account;
use task::current::current;
use vfs::error::Result;
use vfs::file::{FileRef, o};

use crate::support::{self, Calls};

/// The user that pays.
const USER: u32 = 1000;

/// Runs `body` in a thread of a machine with so many CPUs and an empty root file system.
pub fn on(cpus: usize, body: impl FnOnce() + Send + 'static) {
    support::on(cpus, move || {
        ipc::init(cpus);
        become_payer();
        body();
    });
}

/// Makes the account of a user pay for what the thread makes.
pub fn become_payer() {
    let mut cred = Cred::root();
    cred.payer = account::of_thread(USER).expect("memory for an account");
    drop(current().replace_cred(Arc::new(cred)));
}

/// inotify_init1(2), with IN_NONBLOCK.
pub fn instance() -> FileRef {
    inotify::make(o::NONBLOCK).expect("memory for an instance")
}

/// inotify_add_watch(2).
pub fn add(file: &FileRef, path: &str, mask: u32) -> Result<i32> {
    let place = Calls::of_root().follow(path)?;
    inotify::add(file, &place.dentry.inode, Request::new(mask)?)
}

/// An event: watch descriptor, mask, name; and its cookie.
pub type Told = (i32, u32, String, u32);

/// All events until now.
pub fn told(file: &FileRef) -> Vec<Told> {
    let mut all = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(len) = file.read(&mut IoBuf::Fill(&mut bytes)) {
        let mut at = 0;
        while at < len {
            let word = |i: usize| {
                let from = at + 4 * i;
                u32::from_ne_bytes(bytes[from..from + 4].try_into().expect("four bytes"))
            };
            let size = word(3) as usize;
            let name = &bytes[at + 16..at + 16 + size];
            let end = name.iter().position(|&b| b == 0).unwrap_or(size);
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            all.push((word(0) as i32, word(1), name, word(2)));
            at += 16 + size;
        }
    }
    all
}

/// The same without cookies.
pub fn events(file: &FileRef) -> Vec<(i32, u32, String)> {
    let all = told(file).into_iter();
    all.map(|(wd, mask, name, _)| (wd, mask, name)).collect()
}

pub fn event(wd: i32, mask: u32, name: &str) -> (i32, u32, String) {
    (wd, mask, name.into())
}

/// Instances and marks of the user of the thread.
pub fn held() -> (u64, u64) {
    let payer = current().payer();
    (payer.held(Charge::Notifiers), payer.held(Charge::Marks))
}
