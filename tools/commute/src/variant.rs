//! Every operation that is tested: a call with its kind of arguments and state, and the cells that it touches.
//!
//! `near` is a page in one region of memory, 16 pages from the other side's, so that both use the same page table but
//! different cache lines of it; `next` is the page beside the other side's; `far` is a region of the side's own, 64 GiB
//! away. `own` is an object that each side has for itself, `one` an object that both use. The program `commute` of the
//! image implements each under the same name.

use crate::call::Call;
use crate::model::{How, Of, Scope, Touch};

/// One kind of operation.
#[derive(Debug)]
pub struct Variant {
    /// The call.
    pub call: Call,
    /// Its arguments, and the state in which it is called.
    pub name: &'static str,
    /// The cells that it reads and changes.
    pub touches: &'static [Touch],
}

const fn read(scope: Scope, name: &'static str, of: Of) -> Touch {
    Touch::new(How::Read, scope, name, of)
}

const fn write(scope: Scope, name: &'static str, of: Of) -> Touch {
    Touch::new(How::Write, scope, name, of)
}

const fn merge(scope: Scope, name: &'static str, of: Of) -> Touch {
    Touch::new(How::Merge, scope, name, of)
}

use Of::{All, Mine, One};
use Scope::{Process, System};

const FAR: Touch = write(Process, "mapping", Mine);
const FAR_SEEN: Touch = read(Process, "mapping", Mine);
const NEW_FD: Touch = write(Process, "lowest free descriptor", One);
const OWN_FD: Touch = read(Process, "own descriptor", Mine);
const OWN_FD_GONE: Touch = write(Process, "own descriptor", Mine);
const ONE_FD: Touch = read(Process, "one descriptor", One);
const OWN_DATA: Touch = read(System, "own file", Mine);
const OWN_DATA_NEW: Touch = write(System, "own file", Mine);
const ONE_PAGE0: Touch = read(System, "page 0 of one file", One);
const ONE_SIZE: Touch = read(System, "size of one file", One);
const ONE_TIMES: Touch = read(System, "times of one file", One);
const ONE_TIMES_NEW: Touch = merge(System, "times of one file", One);
const OWN_PAGE: Touch = read(System, "own page of one file", Mine);
const OWN_PAGE_NEW: Touch = write(System, "own page of one file", Mine);
const OWN_OFFSET: Touch = write(System, "own offset", Mine);
const ONE_OFFSET: Touch = read(System, "one offset", One);
const OWN_PIPE: Touch = write(System, "own pipe", Mine);
const ONE_NAME: Touch = read(System, "one name", One);
const OWN_NAME: Touch = read(System, "own name", Mine);
const CHILD: Touch = write(System, "own child", Mine);
const CHILD_SEEN: Touch = read(System, "own child", Mine);
const PROCESS_COPIED: Touch = read(Process, "", All);

macro_rules! variants {
    ($($call:ident $name:literal $touches:expr;)*) => {
        /// Every variant. Their order determines the order of cases; add new ones at the end of a call.
        pub const ALL: &[Variant] = &[$(Variant { call: Call::$call, name: $name, touches: &$touches }),*];
    };
}

variants! {
    Mmap "any" [FAR];
    Mmap "fixed near" [FAR];
    Mmap "fixed far" [FAR];
    Mmap "one file shared" [FAR, ONE_FD];
    Mmap "own file private" [FAR, OWN_FD];
    Munmap "near untouched" [FAR];
    Munmap "near touched" [FAR];
    Munmap "far untouched" [FAR];
    Munmap "far touched" [FAR];
    Munmap "far middle" [FAR];
    Munmap "one file touched" [FAR];
    Mprotect "near touched" [FAR];
    Mprotect "far untouched" [FAR];
    Mprotect "far touched" [FAR];
    Madvise "dontneed near" [FAR];
    Madvise "dontneed far" [FAR];
    Madvise "dontneed untouched" [FAR];
    Madvise "willneed far" [FAR_SEEN];
    Brk "grow" [write(Process, "brk", One)];
    Brk "shrink" [write(Process, "brk", One)];
    Brk "query" [read(Process, "brk", One)];
    Fault "write near" [FAR];
    Fault "write next" [FAR];
    Fault "write far" [FAR];
    Fault "read far" [FAR_SEEN];
    Fault "own file" [FAR_SEEN, OWN_DATA];
    Fault "one file own page" [FAR_SEEN, OWN_PAGE];
    Fault "one file one page" [FAR_SEEN, ONE_PAGE0];
    Fault "write private file" [FAR, ONE_PAGE0];
    Fault "copy on write" [FAR];
    Fork "fork" [PROCESS_COPIED, CHILD];
    Fork "vfork" [CHILD];
    Exec "one program" [CHILD, read(System, "one program", One)];
    Exec "own program" [CHILD, read(System, "own program", Mine)];
    Exit "small" [CHILD];
    Exit "64 pages" [CHILD];
    Exit "8 pipes" [CHILD];
    Wait "zombie" [CHILD];
    Wait "zombie peek" [CHILD_SEEN];
    Wait "alive" [CHILD_SEEN];
    Kill "own child probe" [CHILD_SEEN];
    Kill "one target probe" [read(System, "one target lives", One)];
    Kill "own child pending" [CHILD];
    Kill "one target pending" [merge(System, "one target's signals", One), read(System, "one target lives", One)];
    Kill "own child killed" [CHILD];
    Kill "nobody" [];
    Getpid "getpid" [];
    Getpid "getppid" [];
    Getpid "gettid" [];
    Futex "wake own" [read(System, "own word", Mine)];
    Futex "wake one" [read(System, "one word", One)];
    Futex "wait own changed" [read(System, "own word", Mine)];
    Futex "wait one changed" [read(System, "one word", One)];
    Pipe "pipe" [NEW_FD];
    Read "own file" [OWN_FD, OWN_OFFSET, OWN_DATA];
    Read "one file own page" [ONE_FD, OWN_PAGE];
    Read "one file one page" [ONE_FD, ONE_PAGE0];
    Read "one file own descriptor" [OWN_FD, ONE_PAGE0];
    Read "one file end" [ONE_FD, ONE_SIZE];
    Read "own pipe" [OWN_FD, OWN_PIPE];
    Read "one pipe" [write(System, "front of one pipe", One)];
    Read "own pipe empty" [OWN_FD, OWN_PIPE];
    Read "one pipe empty" [read(System, "empty pipe", One)];
    Read "zero" [ONE_FD];
    Write "own file" [OWN_FD, OWN_OFFSET, OWN_DATA_NEW];
    Write "one file own page" [ONE_FD, OWN_PAGE_NEW, ONE_TIMES_NEW];
    Write "one file own descriptor" [OWN_FD, OWN_PAGE_NEW, ONE_TIMES_NEW];
    Write "own pipe" [OWN_FD, OWN_PIPE];
    Write "one pipe" [write(System, "back of one pipe", One)];
    Write "null" [ONE_FD];
    Lseek "own descriptor" [OWN_FD, OWN_OFFSET];
    Lseek "one file own descriptor" [OWN_FD, OWN_OFFSET];
    Lseek "one descriptor ask" [ONE_FD, ONE_OFFSET];
    Lseek "one descriptor same" [ONE_FD, merge(System, "one offset", One)];
    Open "own file" [NEW_FD, OWN_NAME];
    Open "one directory" [NEW_FD, OWN_NAME];
    Open "one file" [NEW_FD, ONE_NAME];
    Open "absent" [read(System, "absent name", One)];
    Open "create own directory" [NEW_FD, write(System, "new name", Mine)];
    Open "create one directory" [NEW_FD, write(System, "new name", Mine), merge(System, "times of one directory", One)];
    Close "own file" [OWN_FD_GONE];
    Close "one file" [OWN_FD_GONE];
    Close "one open file" [OWN_FD_GONE];
    Close "pipe end" [OWN_FD_GONE, OWN_PIPE];
    Close "nothing" [];
    Dup "lowest" [NEW_FD, OWN_FD];
    Dup "own to own slot" [OWN_FD, write(Process, "own slot", Mine)];
    Dup "one to own slot" [ONE_FD, write(Process, "own slot", Mine)];
    Dup "from 200" [OWN_FD, write(Process, "own slot", Mine)];
    Stat "own file" [OWN_NAME, OWN_DATA];
    Stat "one directory" [OWN_NAME, OWN_DATA];
    Stat "one file" [ONE_NAME, ONE_SIZE, ONE_TIMES];
    Stat "absent" [read(System, "absent name", One)];
    Stat "own descriptor" [OWN_FD, OWN_DATA];
    Stat "one descriptor" [ONE_FD, ONE_SIZE, ONE_TIMES];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_variants_and_no_two_have_the_same_name() {
        for call in Call::ALL {
            let mut names: Vec<_> = ALL
                .iter()
                .filter(|v| v.call == call)
                .map(|v| v.name)
                .collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert!(all > 0 && names.len() == all, "{}", call.name());
        }
    }
}
