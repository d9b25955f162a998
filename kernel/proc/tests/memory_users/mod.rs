//! Programs that use much memory, on a machine with the out-of-memory killer.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;

use cred::Charge;
use proc::wait4::Children;
use proc::{Process, daemons, ids, with_space};
use task::current::current;
use task::park::{self, Deadline, Interruptible};
use vm::space::MapArgs;
use vm::{MapProt, Pfn, Rights};

use crate::programs::{MS, PAGE, become_user, create, take_memory, until_asleep};
use crate::support::{fork, kill, me, nap, on, user_mode, wait};

/// Where processes map the memory that they use up.
pub const HEAP: u64 = 0x4000_0000;
/// More pages than the machine has.
pub const ALL: u64 = 4000;

/// Runs `body` as the program of init on a machine with the killer's thread.
pub fn with_killer(cpus: usize, body: impl FnOnce() + Send + 'static) {
    on(cpus, || {
        daemons::start(false);
        body();
        ids::each_process(2, |p| {
            kill(p.pid(), 9);
            true
        });
        while wait(Children::Any).is_ok() {}
    });
}

/// Gives the caller a new program's memory, with room for `ALL` pages from [`HEAP`] on.
pub fn begin() {
    take_memory();
    map_heap();
}

/// Makes room for `ALL` pages from [`HEAP`] on.
pub fn map_heap() {
    let args = MapArgs::anon(ALL * PAGE, MapProt::READ | MapProt::WRITE).at(HEAP);
    let mapped = with_space(|space| space.map(mem::vm(), &args));
    assert_eq!(mapped, Some(Ok(HEAP)));
}

/// Writes to a page. Returns false if the process is to end.
pub fn touch(page: u64) -> bool {
    let at = HEAP + page * PAGE;
    let written = hal::uaccess::UserPtr::<u32>::new(at).write(&7).is_ok();
    user_mode();
    written
}

/// Sleeps until it is killed.
pub fn stay() -> ! {
    loop {
        nap(1000);
        user_mode();
    }
}

/// Sleeps, and when it is killed goes on sleeping for so many milliseconds at most.
pub fn stay_on(ms: u64) -> ! {
    loop {
        let _ = park::sleep_until(Deadline::after(ms * MS), Interruptible::No);
        user_mode();
    }
}

/// A process that uses so many pages and then sleeps.
pub fn user_of(pages: u64, adj: i32) -> u32 {
    user_that(pages, adj, || stay())
}

/// As [`user_of`]: what it does then is `rest`.
pub fn user_that(pages: u64, adj: i32, rest: impl Fn() + Send + Sync + 'static) -> u32 {
    let pid = fork(move || {
        begin();
        me().set_oom_adj(adj, true);
        (0..pages).for_each(|page| assert!(touch(page)));
        rest();
        0
    });
    until_asleep(pid);
    pid
}

/// A process of user 1000 that has so many descriptors, and for which the kernel holds so many pages. Then it does `rest`.
pub fn holder_of(files: u32, pages: usize, rest: impl Fn() + Send + Sync + 'static) -> u32 {
    let pid = fork(move || {
        take_memory();
        for n in 0..files {
            let file = create(&format!("/{}-{n}", me().pid()), 0o600);
            let fd = proc::with_files(|table| table.add(file, false, 0, 100));
            assert!(matches!(fd, Some(Ok(_))));
        }
        become_user(1000);
        let payer = current().payer();
        payer.charge(Charge::Memory, pages * PAGE as usize);
        rest();
        0
    });
    until_asleep(pid);
    pid
}

/// A process that uses ever more memory until `done`, and then exits with 3. It exits with [`REFUSED`] if it gets no more.
pub fn hog(done: impl Fn() -> bool + Send + Sync + 'static) -> u32 {
    fork(move || {
        begin();
        for page in 0..ALL {
            if done() {
                return 3;
            }
            if !touch(page) {
                return REFUSED;
            }
        }
        panic!("there is more memory than the machine has")
    })
}

/// The status of a process that got no more memory, but was not chosen.
pub const REFUSED: u8 = 5;

/// Takes pages until memory is low, and stays so when the CPUs give back what they keep.
pub fn hoard() -> Vec<Pfn> {
    let mut pages = Vec::new();
    // What the killer has freed in its search is taken, too: retired memory, and what the CPUs keep in caches.
    let mut looks = 0;
    while looks < 3 {
        while !mem::vm().alloc.low_memory() {
            let page = mem::vm().alloc.alloc(&ksync::pin(), Rights::Kernel);
            pages.push(page.expect("memory is not low"));
            looks = 0;
        }
        mem::vm().alloc.request_drain();
        mem::slab().request_drain();
        mem::epoch().synchronize();
        let cpus = 0..hal::cpu::count();
        cpus.for_each(hal::ipi::reschedule);
        nap(20);
        mem::poll(&ksync::pin());
        looks += u32::from(mem::vm().alloc.low_memory());
    }
    pages
}

/// Frees them.
pub fn give_back(pages: Vec<Pfn>) {
    let pin = ksync::pin();
    pages
        .iter()
        .for_each(|&page| mem::vm().alloc.free(&pin, page));
}

/// Runs `body` while memory is low.
pub fn in_need<R>(body: impl FnOnce() -> R) -> R {
    let pages = hoard();
    let result = body();
    give_back(pages);
    result
}

/// The process `pid`.
///
/// # Panics
/// If there is none.
pub fn find(pid: u32) -> Arc<Process> {
    ids::find_process(pid).expect("a process that was not waited for")
}

/// Whether the process has not ended.
pub fn lives(pid: u32) -> bool {
    ids::find_process(pid).is_some_and(|p| !p.is_zombie())
}

/// The status of a process that the killer has ended.
pub const KILLED: u32 = 9;
