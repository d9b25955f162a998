//! What the arguments of system calls mean, for the calls whose objects are live ones.

use crate::shapes::Shape;
use Arg::{
    Any, Epoll, Fd, Flags, Len, Map, Msg, NameLen, Of, Pid, Pidfd, Sem, Shm, Sock, Span, Timer, To,
};
use Shape::{
    Clone, Event, Itimer, Length, Lock, Message, MessageText, Name, Netlink, Number, Path, Polls,
    SemOps, SemValues, SigEvent, Signals, Time, Vectors, Waiters, Word,
};
use libc::*;

/// The meaning of an argument.
#[derive(Clone, Copy)]
pub enum Arg {
    /// Nothing is known.
    Any,
    /// A descriptor.
    Fd,
    /// A socket.
    Sock,
    /// A descriptor of a process.
    Pidfd,
    /// An epoll.
    Epoll,
    /// A pointer to a structure of this kind.
    To(Shape),
    /// One of these numbers.
    Of(&'static [u64]),
    /// A set of bits.
    Flags,
    /// A length, an offset, a small number.
    Len,
    /// The length of a socket's name.
    NameLen,
    /// A process.
    Pid,
    /// A shared-memory segment.
    Shm,
    /// A semaphore set.
    Sem,
    /// A message queue.
    Msg,
    /// A POSIX timer.
    Timer,
    /// A page of a mapping.
    Map,
    /// A length of some pages.
    Span,
}

/// A call, and what its arguments mean.
pub type Row = (i64, &'static [Arg]);

const LEVELS: Arg = Of(&[1, 1, 1, 6, 0, 17, 41, 270, 2]);
const OPTIONS: Arg = Of(&[
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 26, 29, 30, 33, 35,
    36, 38, 39, 40, 42, 59,
]);
const SMALL: Arg = Of(&[0, 1, 2, 3, 4, 5, 8, 16]);
/// Timeouts in milliseconds.
const SOON: Arg = Of(&[0, 0, 0, 1, 2, 5]);
const CLOCKS: Arg = Of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12]);
const SEND: Arg = Of(&[
    0,
    0x40,
    0x4040,
    1,
    0x41,
    0x8040,
    0x2040,
    0x80,
    0x1040,
    0x2000_0040,
]);
const RECEIVE: Arg = Of(&[0, 0x40, 2, 0x42, 0x20, 0x60, 0x141, 0x4000_0040, 0x2040]);
const TERMINAL: Arg = Of(&[
    0x5401,
    0x5402,
    0x5403,
    0x5404,
    0x5405,
    0x5406,
    0x5408,
    0x5409,
    0x540a,
    0x540b,
    0x540c,
    0x540d,
    0x540e,
    0x540f,
    0x5410,
    0x5411,
    0x5412,
    0x5413,
    0x5414,
    0x541b,
    0x5420,
    0x5421,
    0x5422,
    0x5423,
    0x5424,
    0x5425,
    0x5429,
    0x5440,
    0x5450,
    0x5451,
    0x5452,
    0x8004_5430,
    0x8004_5432,
    0x8004_5438,
    0x8004_5439,
    0x4004_5431,
    0x5441,
    0x8905,
    0x8904,
    0x8901,
    0x8902,
    0x8910,
    0x8912,
    0x8913,
    0x8914,
    0x8915,
    0x8919,
    0x891b,
    0x8921,
    0x8927,
    0x8933,
    0x5437,
    0x4008_5400,
]);

/// Calls of sockets.
const SOCKETS: &[Row] = &[
    (
        SYS_socket,
        &[
            Of(&[1, 2, 10, 16, 17, 3]),
            Of(&[1, 2, 3, 5, 0x801, 0x802, 0x805, 0x8_0803]),
            Of(&[0, 6, 17, 1, 15]),
        ],
    ),
    (
        SYS_socketpair,
        &[
            Of(&[1, 1, 2, 16]),
            Of(&[1, 2, 5, 0x801, 0x805]),
            Of(&[0, 1]),
            To(Number),
        ],
    ),
    (SYS_bind, &[Sock, To(Name), NameLen]),
    (SYS_connect, &[Sock, To(Name), NameLen]),
    (SYS_connect, &[Sock, To(Name), NameLen]),
    (SYS_listen, &[Sock, Of(&[0, 1, 5, 128, u64::MAX])]),
    (SYS_accept, &[Sock, To(Name), To(Length)]),
    (
        SYS_accept4,
        &[
            Sock,
            To(Name),
            To(Length),
            Of(&[0, 0x800, 0x8_0000, 0x8_0800, 1]),
        ],
    ),
    (SYS_getsockname, &[Sock, To(Name), To(Length)]),
    (SYS_getpeername, &[Sock, To(Name), To(Length)]),
    (
        SYS_setsockopt,
        &[
            Sock,
            LEVELS,
            OPTIONS,
            To(Number),
            Of(&[4, 4, 8, 16, 1, 0, 12]),
        ],
    ),
    (
        SYS_getsockopt,
        &[Sock, LEVELS, OPTIONS, To(Number), To(Length)],
    ),
    (SYS_shutdown, &[Sock, Of(&[0, 1, 2, 3])]),
    (
        SYS_sendto,
        &[Sock, To(MessageText), Len, SEND, To(Name), NameLen],
    ),
    (
        SYS_sendto,
        &[
            Sock,
            To(Netlink),
            Of(&[16, 20, 24, 32, 40, 60, 100]),
            SEND,
            Of(&[0]),
            Of(&[0]),
        ],
    ),
    (
        SYS_recvfrom,
        &[Sock, To(MessageText), Len, RECEIVE, To(Name), To(Length)],
    ),
    (SYS_sendmsg, &[Sock, To(Message), SEND]),
    (SYS_sendmsg, &[Sock, To(Message), SEND]),
    (SYS_recvmsg, &[Sock, To(Message), RECEIVE]),
    (SYS_recvmsg, &[Sock, To(Message), RECEIVE]),
    (SYS_sendmmsg, &[Sock, To(Message), SMALL, SEND]),
    (SYS_recvmmsg, &[Sock, To(Message), SMALL, RECEIVE, To(Time)]),
];

/// Calls of descriptors in general.
const DESCRIPTORS: &[Row] = &[
    (SYS_read, &[Fd, To(MessageText), Len]),
    (SYS_write, &[Fd, To(MessageText), Len]),
    (SYS_readv, &[Fd, To(Vectors), SMALL]),
    (SYS_writev, &[Fd, To(Vectors), SMALL]),
    (SYS_pread64, &[Fd, To(MessageText), Len, Len]),
    (
        SYS_pwritev2,
        &[Fd, To(Vectors), SMALL, Len, Of(&[0]), Flags],
    ),
    (SYS_preadv2, &[Fd, To(Vectors), SMALL, Len, Of(&[0]), Flags]),
    (SYS_lseek, &[Fd, Len, SMALL]),
    (SYS_ioctl, &[Fd, TERMINAL, To(Number)]),
    (SYS_ioctl, &[Fd, TERMINAL, SMALL]),
    (
        SYS_fcntl,
        &[
            Fd,
            Of(&[
                0, 1, 2, 3, 4, 10, 11, 15, 16, 1024, 1025, 1026, 1030, 1031, 1032, 1033, 1034,
            ]),
            Len,
        ],
    ),
    (
        SYS_fcntl,
        &[
            Fd,
            Of(&[5, 6, 7, 12, 13, 14, 36, 37, 38, 1035, 1036]),
            To(Lock),
        ],
    ),
    (SYS_fcntl, &[Fd, Of(&[8, 15, 16]), Pid]),
    (SYS_fcntl, &[Fd, Of(&[1033]), Of(&[1, 2, 4, 8, 16, 31])]),
    (SYS_fstat, &[Fd, To(Number)]),
    (SYS_close, &[Fd]),
    (SYS_close_range, &[Fd, Fd, Of(&[0, 2, 4, 6])]),
    (SYS_dup, &[Fd]),
    (SYS_dup2, &[Fd, Fd]),
    (SYS_dup3, &[Fd, Fd, Of(&[0, 0x8_0000])]),
    (SYS_ftruncate, &[Fd, Len]),
    (SYS_fallocate, &[Fd, Of(&[0, 1, 2, 3, 8, 16, 32]), Len, Len]),
    (SYS_flock, &[Fd, Of(&[4, 5, 6, 8])]),
    (SYS_sendfile, &[Fd, Fd, To(Number), Len]),
    (
        SYS_splice,
        &[Fd, To(Number), Fd, To(Number), Len, Of(&[2, 3, 6])],
    ),
    (
        SYS_splice,
        &[Fd, Of(&[0]), Fd, Of(&[0]), Len, Of(&[2, 3, 6])],
    ),
    (SYS_tee, &[Fd, Fd, Len, Of(&[2, 3])]),
    (SYS_vmsplice, &[Fd, To(Vectors), SMALL, Of(&[2, 3, 8, 10])]),
    (
        SYS_copy_file_range,
        &[Fd, To(Number), Fd, To(Number), Len, Of(&[0])],
    ),
    (SYS_poll, &[To(Polls), SMALL, SOON]),
    (
        SYS_ppoll,
        &[To(Polls), SMALL, To(Time), To(Signals), Of(&[8])],
    ),
    (
        SYS_select,
        &[Len, To(Signals), To(Signals), To(Signals), To(Time)],
    ),
    (SYS_epoll_create1, &[Of(&[0, 0x8_0000])]),
    (SYS_epoll_ctl, &[Epoll, Of(&[1, 1, 2, 3]), Fd, To(Event)]),
    (SYS_epoll_ctl, &[Epoll, Of(&[1, 1, 2, 3]), Fd, To(Event)]),
    (SYS_epoll_wait, &[Epoll, To(MessageText), SMALL, SOON]),
    (
        SYS_epoll_pwait,
        &[Epoll, To(MessageText), SMALL, SOON, To(Signals), Of(&[8])],
    ),
    (
        SYS_epoll_pwait2,
        &[
            Epoll,
            To(MessageText),
            SMALL,
            To(Time),
            To(Signals),
            Of(&[8]),
        ],
    ),
    (SYS_eventfd2, &[Len, Of(&[0, 1, 0x800, 0x8_0801])]),
    (SYS_signalfd4, &[Fd, To(Signals), Of(&[8]), Of(&[0, 0x800])]),
    (
        SYS_timerfd_settime,
        &[Fd, Of(&[0, 1, 3]), To(Itimer), To(Itimer)],
    ),
    (SYS_timerfd_gettime, &[Fd, To(Itimer)]),
    (SYS_memfd_create, &[To(Path), Of(&[0, 1, 2, 3, 4, 8])]),
    (SYS_pidfd_open, &[Pid, Of(&[0, 0x800])]),
    (
        SYS_pidfd_send_signal,
        &[Pidfd, Of(&[0, 10, 18, 34, 14]), Of(&[0]), Of(&[0])],
    ),
    (SYS_pidfd_getfd, &[Pidfd, Fd, Of(&[0])]),
    (
        SYS_waitid,
        &[
            Of(&[0, 1, 2, 3]),
            Pidfd,
            To(Number),
            Of(&[5, 7, 0x0100_0005]),
            To(Number),
        ],
    ),
    (
        SYS_inotify_add_watch,
        &[Fd, To(Path), Of(&[0xfff, 2, 0x100, 0x2000_0fff])],
    ),
    (
        SYS_openat,
        &[
            Fd,
            To(Path),
            Of(&[0, 1, 2, 0x42, 0x800, 0x8_0902, 0x20_0000, 0x241]),
            Of(&[0o600]),
        ],
    ),
    (SYS_pipe2, &[To(Number), Of(&[0, 0x800, 0x4800])]),
    (
        SYS_execveat,
        &[Fd, To(Path), Of(&[0]), Of(&[0]), Of(&[0x1000, 0, 0x100])],
    ),
];

/// Calls of what has numbers, and of processes.
const NUMBERS: &[Row] = &[
    (SYS_timer_create, &[CLOCKS, To(SigEvent), To(Word)]),
    (
        SYS_timer_settime,
        &[Timer, Of(&[0, 1]), To(Itimer), To(Itimer)],
    ),
    (SYS_timer_gettime, &[Timer, To(Itimer)]),
    (SYS_timer_getoverrun, &[Timer]),
    (SYS_timer_delete, &[Timer]),
    (
        SYS_clock_nanosleep,
        &[CLOCKS, Of(&[0, 1]), To(Time), To(Time)],
    ),
    (
        SYS_shmget,
        &[Of(&[0, 0, 77]), Len, Of(&[0o1600, 0o600, 0o3600, 0o5600])],
    ),
    (
        SYS_shmat,
        &[Shm, Map, Of(&[0, 0o10000, 0o20000, 0o40000, 0o60000])],
    ),
    (SYS_shmat, &[Shm, Of(&[0]), Of(&[0, 0o10000])]),
    (SYS_shmdt, &[Map]),
    (
        SYS_shmctl,
        &[
            Shm,
            Of(&[0, 1, 2, 2, 3, 11, 12, 13, 14, 15]),
            To(MessageText),
        ],
    ),
    (
        SYS_semget,
        &[Of(&[0, 0, 77]), SMALL, Of(&[0o1600, 0o600, 0o3600])],
    ),
    (SYS_semop, &[Sem, To(SemOps), SMALL]),
    (SYS_semtimedop, &[Sem, To(SemOps), SMALL, To(Time)]),
    (
        SYS_semctl,
        &[
            Sem,
            SMALL,
            Of(&[0, 1, 2, 11, 12, 13, 14, 15, 16, 18, 19, 20]),
            SMALL,
        ],
    ),
    (
        SYS_semctl,
        &[
            Sem,
            SMALL,
            Of(&[1, 2, 3, 13, 17, 18, 19, 20]),
            To(SemValues),
        ],
    ),
    (SYS_msgget, &[Of(&[0, 0, 77]), Of(&[0o1600, 0o600, 0o3600])]),
    (SYS_msgsnd, &[Msg, To(MessageText), Len, Of(&[0, 0o4000])]),
    (
        SYS_msgrcv,
        &[
            Msg,
            To(MessageText),
            Len,
            Of(&[0, 1, 2, u64::MAX]),
            Of(&[0, 0o4000, 0o14000, 0o24000, 0o44000]),
        ],
    ),
    (
        SYS_msgctl,
        &[Msg, Of(&[0, 1, 2, 2, 3, 11, 12, 13]), To(MessageText)],
    ),
    (SYS_clone3, &[To(Clone), Of(&[64, 80, 88, 88, 88, 100])]),
    (
        SYS_futex,
        &[
            To(Word),
            Of(&[
                0, 1, 128, 129, 4, 132, 5, 9, 137, 10, 138, 6, 134, 7, 135, 8, 136, 11, 139, 12,
                140, 13, 141,
            ]),
            SMALL,
            To(Time),
            To(Word),
            SMALL,
        ],
    ),
    (
        SYS_futex_waitv,
        &[To(Waiters), SMALL, Of(&[0]), To(Time), Of(&[0, 1])],
    ),
    (SYS_set_robust_list, &[To(Number), Of(&[24])]),
    (
        SYS_rseq,
        &[To(Number), Of(&[32]), Of(&[0, 1]), Of(&[0x5305_3053])],
    ),
    (
        SYS_membarrier,
        &[
            Of(&[0, 1, 2, 4, 8, 16, 32, 64, 128, 256]),
            Of(&[0, 1]),
            SMALL,
        ],
    ),
    (
        SYS_prlimit64,
        &[
            Pid,
            Of(&[3, 4, 8, 11, 12, 13, 14, 15]),
            To(Number),
            To(Number),
        ],
    ),
    (
        SYS_process_vm_readv,
        &[Pid, To(Vectors), SMALL, To(Vectors), SMALL, Of(&[0])],
    ),
    (
        SYS_process_vm_writev,
        &[Pid, To(Vectors), SMALL, To(Vectors), SMALL, Of(&[0])],
    ),
    (
        SYS_sched_setaffinity,
        &[Pid, Of(&[8, 16, 128]), To(Signals)],
    ),
    (SYS_setpgid, &[Pid, Pid]),
    (
        SYS_wait4,
        &[
            Pid,
            To(Number),
            Of(&[1, 3, 11, 0x4000_0001]),
            To(MessageText),
        ],
    ),
    (
        SYS_rt_sigtimedwait,
        &[To(Signals), To(Number), To(Time), Of(&[8])],
    ),
];

/// Calls of mappings, the vDSO's among them.
const MEMORY: &[Row] = &[
    (
        SYS_mmap,
        &[
            Map,
            Span,
            Of(&[0, 1, 3, 5, 7]),
            Of(&[1, 2, 0x21, 0x22, 0x12, 0x11, 0x4022, 0x10_0022]),
            Fd,
            Span,
        ],
    ),
    (
        SYS_mmap,
        &[Of(&[0]), Span, Of(&[1, 3]), Of(&[1, 2]), Fd, Span],
    ),
    (SYS_munmap, &[Map, Span]),
    (
        SYS_mprotect,
        &[Map, Span, Of(&[0, 1, 3, 5, 7, 0x0100_0001])],
    ),
    (SYS_mremap, &[Map, Span, Span, Of(&[0, 1, 3, 5, 7]), Map]),
    (
        SYS_madvise,
        &[
            Map,
            Span,
            Of(&[
                0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 100,
                101,
            ]),
        ],
    ),
    (SYS_mlock2, &[Map, Span, Of(&[0, 1])]),
    (SYS_mlock, &[Map, Span]),
    (SYS_munlock, &[Map, Span]),
    (SYS_mincore, &[Map, Span, To(MessageText)]),
    (SYS_msync, &[Map, Span, Of(&[1, 2, 4, 6])]),
    (
        SYS_remap_file_pages,
        &[Map, Span, Of(&[0]), SMALL, Of(&[0])],
    ),
    (
        SYS_mbind,
        &[Map, Span, SMALL, To(Signals), Of(&[8, 64]), Of(&[0, 1, 2])],
    ),
    (SYS_set_mempolicy_home_node, &[Map, Span, SMALL, Of(&[0])]),
    (
        SYS_process_madvise,
        &[Pidfd, To(Vectors), SMALL, Of(&[3, 20, 21, 25]), Of(&[0])],
    ),
    (
        SYS_futex,
        &[Map, Of(&[0, 1, 6, 7, 128]), SMALL, To(Time), Map, SMALL],
    ),
    (SYS_read, &[Fd, Map, Len]),
    (SYS_write, &[Fd, Map, Len]),
    (SYS_recvfrom, &[Sock, Map, Len, RECEIVE, Of(&[0]), Of(&[0])]),
];

/// The rows by room.
pub const ROOMS: &[&[Row]] = &[SOCKETS, SOCKETS, DESCRIPTORS, DESCRIPTORS, NUMBERS, MEMORY];

/// The row of a call, for its arguments; an empty one if nothing is known.
pub fn row_of(nr: i64, nth: u64) -> &'static [Arg] {
    let rooms = [SOCKETS, DESCRIPTORS, NUMBERS, MEMORY];
    let of = || rooms.into_iter().flatten().filter(move |row| row.0 == nr);
    let count = of().count().max(1);
    of().nth(nth as usize % count)
        .map_or(&[Any; 6], |row| row.1)
}
