//! `abitest`: system calls against their man pages.
//!
//! Guarantee: each test runs in a process of its own with a time limit, so that a test that crashes or hangs fails
//! alone. A line for each: `ok NAME`, `skip NAME: REASON` or `FAIL NAME: REASON`; the last is `N passed, N failed`.
//! Every test also passes on Linux as root, which is how the tests themselves are tested.

#[macro_use]
mod harness;
mod accounts;
mod acls;
mod affinity;
mod aio;
mod ancillary;
mod births;
mod clone3;
mod cpu_timers;
mod creds;
mod details;
mod device;
mod dirs;
mod dnotify;
mod epoll;
mod events;
mod fault;
mod fdinfo;
mod files;
mod futex;
mod inet;
mod inet_calls;
mod inotify;
mod jobs;
mod leaving;
mod limits;
mod locks;
mod logins;
mod look;
mod matrix;
mod memfds;
mod mm;
mod mqueue;
mod mqueue_calls;
mod msg;
mod names;
mod netlink;
mod netlink_calls;
mod notes;
mod owners;
mod pagemap;
mod peers;
mod pi;
mod pi_conditions;
mod pidfd;
mod pipes;
mod privileges;
mod process;
mod pty_ends;
mod pty_sessions;
mod ptys;
mod realtime;
mod reports;
mod rights;
mod rseq;
mod sem;
mod shm;
mod signals;
mod socket_calls;
mod sockets;
mod splices;
mod superpages;
mod system;
mod time;
mod timerfd;
mod timers;
mod tmpfs;
mod udp;
mod udplite;
mod waitv;
mod xattrs;

use harness::{Test, Verdict};

const SUBJECTS: &[&[Test]] = &[
    mm::TESTS,
    fault::TESTS,
    process::TESTS,
    signals::TESTS,
    splices::TESTS,
    sockets::TESTS,
    pipes::TESTS,
    mqueue::TESTS,
    msg::TESTS,
    sem::TESTS,
    shm::TESTS,
    futex::TESTS,
    pi::TESTS,
    pi_conditions::TESTS,
    events::TESTS,
    fdinfo::TESTS,
    files::TESTS,
    inotify::TESTS,
    accounts::TESTS,
    aio::TESTS,
    affinity::TESTS,
    ancillary::TESTS,
    births::TESTS,
    clone3::TESTS,
    cpu_timers::TESTS,
    creds::TESTS,
    details::TESTS,
    device::TESTS,
    dirs::TESTS,
    dnotify::TESTS,
    epoll::TESTS,
    inet::TESTS,
    jobs::TESTS,
    leaving::TESTS,
    limits::TESTS,
    locks::TESTS,
    logins::TESTS,
    look::TESTS,
    matrix::TESTS,
    memfds::TESTS,
    names::TESTS,
    netlink::TESTS,
    owners::TESTS,
    pagemap::TESTS,
    peers::TESTS,
    pidfd::TESTS,
    privileges::TESTS,
    ptys::TESTS,
    pty_sessions::TESTS,
    realtime::TESTS,
    reports::TESTS,
    rights::TESTS,
    superpages::TESTS,
    rseq::TESTS,
    system::TESTS,
    time::TESTS,
    timers::TESTS,
    timerfd::TESTS,
    tmpfs::TESTS,
    udp::TESTS,
    udplite::TESTS,
    waitv::TESTS,
    xattrs::TESTS,
    acls::TESTS,
];

/// Plays the part that a test gave this program, if the arguments name one; then it does not return.
fn play(args: &[String]) {
    // As a script's interpreter this program gets the script's name as an argument.
    if args.iter().any(|arg| arg.ends_with("--tell")) {
        privileges::tell();
        std::process::exit(0);
    }
    if args.iter().any(|arg| arg == "--leader") {
        user::sys::exit(process::leader());
    }
    if let [first, to, times] = args
        && first == "--again"
        && let (Ok(to), Ok(times)) = (to.parse(), times.parse())
    {
        user::sys::exit(locks::exec_again(to, times));
    }
    if args.iter().any(|arg| arg == "--actions") {
        user::sys::exit(process::actions());
    }
    if args.iter().any(|arg| arg == "--forbids") {
        user::sys::exit(superpages::forbids());
    }
    if args.iter().any(|arg| arg == "--queues") {
        user::sys::exit(mqueue_calls::leave_behind());
    }
    if args.iter().any(|arg| arg == "--wait") {
        // For a test that needs this program to run for a while: runs until its standard input ends.
        let _ = user::sys::read(0, &mut [0]);
        std::process::exit(0);
    }
}

fn main() {
    let prefixes: Vec<String> = std::env::args().skip(1).collect();
    if prefixes.iter().any(|arg| arg == "--list") {
        SUBJECTS
            .iter()
            .copied()
            .flatten()
            .for_each(|test| println!("{}", test.name));
        return;
    }
    if prefixes.iter().any(|arg| arg == "--matrix") {
        matrix::print();
        return;
    }
    play(&prefixes);
    let chosen = |test: &&Test| {
        prefixes.is_empty()
            || prefixes
                .iter()
                .any(|prefix| test.name.starts_with(prefix.as_str()))
    };
    user::sys::caught_page();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for test in SUBJECTS.iter().copied().flatten().filter(chosen) {
        match harness::run(test) {
            Verdict::Passed => {
                passed += 1;
                println!("ok {}", test.name);
            }
            Verdict::Skipped(reason) => {
                skipped += 1;
                println!("skip {}: {reason}", test.name);
            }
            Verdict::Failed(reason) => {
                failed += 1;
                println!("FAIL {}: {reason}", test.name);
            }
        }
    }
    if skipped > 0 {
        println!("{skipped} skipped");
    }
    println!("{passed} passed, {failed} failed");
    user::sys::exit(i32::from(failed > 0 || passed == 0));
}
