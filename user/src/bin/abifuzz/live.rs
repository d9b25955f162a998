//! Live objects: descriptors, numbers and mappings of every kind that random calls may be made on.
//!
//! Guarantee: what is opened follows from the random numbers alone, whether the kernel permits it or not. Objects with names that
//! outlive a process (System V's) are noted in memory that the round's parent shares, so that [`Left::remove`] removes them.
//! Mechanism: [`Live::renew`] opens one kind. A descriptor takes the place of a random older one, which is closed, so their
//! number is bounded.

use crate::arena::PAGE;
use crate::opens::open_pseudo_terminal;
use crate::random::Random;
use crate::shapes::Bytes;
use user::sys;

/// Descriptors held at once: [`SOCKETS`], [`EPOLLS`], [`OTHERS`], [`PROCESSES`].
const HELD: u64 = 48;

/// Places.
type Places = std::ops::Range<u64>;

/// Those of sockets.
const SOCKETS: Places = 0..22;

/// Those of epolls.
const EPOLLS: Places = 22..27;

/// Those of the rest.
const OTHERS: Places = 27..45;

/// Those of processes.
const PROCESSES: Places = 45..HELD;

/// Numbers held of each kind.
const IDS: usize = 4;

/// Kinds that [`Live::renew`] chooses among.
const KINDS: u64 = 20;

/// Memory that a round shares with its parent: the number of calls made, then the System V objects to remove.
#[derive(Clone, Copy)]
pub struct Left(pub u64);

impl Left {
    /// The most objects noted.
    const MOST: u64 = PAGE / 8 - 2;

    /// Counts a call.
    pub fn count(self) {
        sys::atomic(self.0).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Notes the result of a call that may have made an object.
    pub fn note(self, call: i64, id: u64) {
        let remove = match call {
            libc::SYS_shmget => libc::SYS_shmctl,
            libc::SYS_semget => libc::SYS_semctl,
            libc::SYS_msgget => libc::SYS_msgctl,
            _ => return,
        };
        let slot = sys::peek64(self.0 + 8) % Left::MOST;
        sys::poke64(
            self.0 + 16 + slot * 8,
            (remove as u64) << 32 | id & 0xffff_ffff,
        );
        sys::poke64(self.0 + 8, slot + 1);
    }

    /// Removes the objects noted.
    pub fn remove(self) {
        for slot in 0..sys::peek64(self.0 + 8).min(Left::MOST) {
            let noted = sys::peek64(self.0 + 16 + slot * 8);
            let (call, id) = ((noted >> 32) as i64, noted & 0xffff_ffff);
            let (command, third) = (libc::IPC_RMID as u64, libc::IPC_RMID as u64);
            let _ = match call {
                libc::SYS_semctl => sys::call(call, &[id, 0, third]),
                libc::SYS_shmctl | libc::SYS_msgctl => sys::call(call, &[id, command, 0]),
                _ => Ok(0),
            };
        }
        sys::poke64(self.0 + 8, 0);
    }
}

/// The live objects of a round.
pub struct Live {
    fds: [i32; HELD as usize],
    /// Shared memory, semaphores, message queues.
    pub shm: [u64; IDS],
    /// Semaphore sets.
    pub sem: [u64; IDS],
    /// Message queues.
    pub msg: [u64; IDS],
    /// POSIX timers.
    pub timers: [u64; IDS],
    /// Mappings: shared and private memory, of files without names, of shared-memory segments; and the vDSO.
    pub maps: [u64; 8],
    /// A child that sleeps.
    pub child: u64,
    /// This process.
    pub me: u64,
    /// A port of loopback that a socket of this round has.
    pub port: u16,
    /// What outlives the round.
    left: Left,
}

impl Live {
    /// One object of each kind.
    pub fn new(random: &mut Random, me: u64, left: Left) -> Live {
        let mut live = Live {
            fds: [0; HELD as usize],
            shm: [0; IDS],
            sem: [0; IDS],
            msg: [0; IDS],
            timers: [0; IDS],
            maps: mappings(),
            child: me,
            me,
            port: 1,
            left,
        };
        live.child = sleeping_child().unwrap_or(me);
        for kind in 0..KINDS {
            live.open(kind, random.next());
        }
        live
    }

    /// Opens another object of some kind.
    pub fn renew(&mut self, random: &mut Random) {
        self.open(random.below(KINDS), random.next());
    }

    /// A descriptor, mostly an open one.
    pub fn fd(&self, random: &mut Random) -> u64 {
        self.fd_of(random, 0..HELD)
    }

    /// A descriptor, mostly a socket.
    pub fn socket(&self, random: &mut Random) -> u64 {
        self.fd_of(random, SOCKETS)
    }

    /// A descriptor, mostly an epoll.
    pub fn epoll_fd(&self, random: &mut Random) -> u64 {
        self.fd_of(random, EPOLLS)
    }

    /// A descriptor, mostly of a process.
    pub fn pidfd(&self, random: &mut Random) -> u64 {
        self.fd_of(random, PROCESSES)
    }

    fn fd_of(&self, random: &mut Random, places: Places) -> u64 {
        let (how, any) = (random.below(32), random.next());
        let place = match how {
            0 => return any % 64,
            1 => return any,
            2..5 => any % HELD,
            _ => places.start + any % (places.end - places.start),
        };
        self.fds[place as usize] as i64 as u64
    }

    /// A page of a mapping, or near one.
    pub fn page(&self, random: &mut Random) -> u64 {
        let near = [0, 0, 1, 2, 7, u64::MAX, u64::MAX - 3][random.below(7) as usize];
        let at = self.maps[random.below(self.maps.len() as u64) as usize];
        at.wrapping_add(near.wrapping_mul(PAGE))
    }

    /// A process: this one, its child, or none.
    pub fn pid(&self, random: &mut Random) -> u64 {
        [self.me, self.child, self.child, 0, 3_999_999][random.below(5) as usize]
    }

    fn hold(&mut self, random: &mut Random, places: Places, fd: Result<u64, sys::Errno>) {
        let slot = (places.start + random.below(places.end - places.start)) as usize;
        if let Ok(fd) = fd {
            let old = std::mem::replace(&mut self.fds[slot], fd as i32);
            if old > 2 && old != fd as i32 {
                let _ = sys::close(old);
            }
        }
    }

    fn hold_pair(&mut self, random: &mut Random, call: i64, args: &[u64]) {
        let mut pair = [0i32; 2];
        let mut all = [0; 4];
        all[..args.len()].copy_from_slice(args);
        all[args.len()] = pair.as_mut_ptr().expose_provenance() as u64;
        if sys::call(call, &all[..=args.len()]).is_ok() {
            // In the order of the call, and only then: the random numbers are this object's own.
            self.hold(random, SOCKETS, Ok(pair[0] as u64));
            self.hold(random, SOCKETS, Ok(pair[1] as u64));
        }
    }

    /// Opens an object of `kind`; all further choices follow from `seed`.
    fn open(&mut self, kind: u64, seed: u64) {
        let random = &mut Random(seed);
        let nonblock = libc::O_NONBLOCK as u64;
        match kind {
            0 => {
                let kind = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET]
                    [random.below(3) as usize];
                let unix = libc::AF_UNIX as u64;
                self.hold_pair(
                    random,
                    libc::SYS_socketpair,
                    &[unix, kind as u64 | nonblock, 0],
                );
            }
            1 => self.listener(random, libc::AF_UNIX),
            2 | 3 => self.listener(random, libc::AF_INET),
            4 => self.datagram(random, libc::AF_UNIX),
            5 => self.datagram(random, libc::AF_INET),
            6 => {
                let kind = [libc::SOCK_RAW, libc::SOCK_DGRAM][random.below(2) as usize];
                let args = [libc::AF_NETLINK as u64, kind as u64 | nonblock, 0];
                let fd = sys::call(libc::SYS_socket, &args);
                self.hold(random, SOCKETS, fd);
            }
            7 | 8 => self.epoll(random),
            9..12 => self.event(kind, random),
            12 => self.memory_file(random),
            13 => {
                let args = [[self.me, self.child][random.below(2) as usize], 0];
                self.hold(random, PROCESSES, sys::call(libc::SYS_pidfd_open, &args));
            }
            14 => {
                if let Some((master, slave)) = open_pseudo_terminal() {
                    self.hold(random, OTHERS, Ok(master as u64));
                    self.hold(random, OTHERS, slave);
                }
            }
            15 => self.hold_pair_of_pipe(random),
            16 => self.timer(random),
            17 => self.shared_memory(random),
            18 => self.semaphores_and_queue(random),
            _ => self.file(random),
        }
    }

    /// A file of events, of signals, of a timer.
    fn event(&mut self, kind: u64, random: &mut Random) {
        let nonblock = libc::O_NONBLOCK as u64;
        let fd = match kind {
            9 => sys::call(
                libc::SYS_eventfd2,
                &[random.below(5), nonblock | random.below(2)],
            ),
            10 => {
                let mask = random.next();
                let at = (&raw const mask).expose_provenance() as u64;
                sys::call(libc::SYS_signalfd4, &[u64::MAX, at, 8, nonblock])
            }
            _ => {
                let clock = [0, 1, 7][random.below(3) as usize];
                let fd = sys::call(libc::SYS_timerfd_create, &[clock, nonblock]);
                let (again, first) = (random.below(3) * 500_000, 100_000 + random.below(1 << 22));
                let spec = [0, again, 0, first];
                if let Ok(fd) = fd {
                    let at = spec.as_ptr().expose_provenance() as u64;
                    let _ = sys::call(libc::SYS_timerfd_settime, &[fd, 0, at, 0]);
                }
                fd
            }
        };
        self.hold(random, OTHERS, fd);
    }

    fn hold_pair_of_pipe(&mut self, random: &mut Random) {
        let flags = (libc::O_NONBLOCK | [0, libc::O_DIRECT][random.below(2) as usize]) as u64;
        if let Ok((from, to)) = sys::pipe(flags as i32) {
            let _ = sys::write(to, &[1; 100][..random.below(100) as usize]);
            self.hold(random, OTHERS, Ok(from as u64));
            self.hold(random, OTHERS, Ok(to as u64));
        }
    }

    /// A listening stream socket, a connection that waits, a connection accepted; each perhaps half closed.
    fn listener(&mut self, random: &mut Random, family: i32) {
        let kind = (libc::SOCK_STREAM | libc::SOCK_NONBLOCK) as u64;
        let Ok(listener) = sys::call(libc::SYS_socket, &[family as u64, kind, 0]) else {
            return;
        };
        self.bind(random, listener, family);
        let _ = sys::call(libc::SYS_listen, &[listener, random.below(4)]);
        for _ in 0..=random.below(3) {
            let fd = sys::call(libc::SYS_socket, &[family as u64, kind, 0]);
            if let Ok(fd) = fd {
                self.on_name_of(listener, libc::SYS_connect, fd);
                let _ = sys::write(fd as i32, &[7; 300][..random.below(300) as usize]);
                half_close(random, fd);
            }
            self.hold(random, SOCKETS, fd);
        }
        if random.below(2) == 0 {
            let fd = sys::call(
                libc::SYS_accept4,
                &[listener, 0, 0, libc::O_NONBLOCK as u64],
            );
            if let Ok(fd) = fd {
                half_close(random, fd);
            }
            self.hold(random, SOCKETS, fd);
        }
        self.hold(random, SOCKETS, Ok(listener));
    }

    /// A bound datagram socket, and one connected to it.
    fn datagram(&mut self, random: &mut Random, family: i32) {
        let kind = (libc::SOCK_DGRAM | libc::SOCK_NONBLOCK) as u64;
        let Ok(bound) = sys::call(libc::SYS_socket, &[family as u64, kind, 0]) else {
            return;
        };
        self.bind(random, bound, family);
        let fd = sys::call(libc::SYS_socket, &[family as u64, kind, 0]);
        if let Ok(fd) = fd {
            self.on_name_of(bound, libc::SYS_connect, fd);
            let _ = sys::write(fd as i32, &[9; 50][..random.below(50) as usize]);
        }
        self.hold(random, SOCKETS, fd);
        self.hold(random, SOCKETS, Ok(bound));
    }

    /// Binds to a name of this round, or to a port of loopback that the kernel chooses.
    fn bind(&mut self, random: &mut Random, fd: u64, family: i32) {
        let mut name = Bytes::new();
        if family == libc::AF_UNIX {
            name.unix(self.me, random.below(8));
        } else {
            name.inet(0);
        }
        let _ = sys::call(libc::SYS_bind, &[fd, name.address(), name.len()]);
        if family == libc::AF_INET {
            let mut got = [0u16; 16];
            let mut len = 32u32;
            let at = got.as_mut_ptr().expose_provenance() as u64;
            let len = (&raw mut len).expose_provenance() as u64;
            let _ = sys::call(libc::SYS_getsockname, &[fd, at, len]);
            self.port = u16::from_be(got[1]);
        }
    }

    /// Makes `call` on `fd` with the name of the socket `bound`.
    fn on_name_of(&self, bound: u64, call: i64, fd: u64) {
        let mut name = [0u8; 128];
        let mut len = 128u32;
        let at = name.as_mut_ptr().expose_provenance() as u64;
        let size = (&raw mut len).expose_provenance() as u64;
        if sys::call(libc::SYS_getsockname, &[bound, at, size]).is_ok() {
            let _ = sys::call(call, &[fd, at, u64::from(len).min(128)]);
        }
    }

    /// An epoll with a few of the other descriptors in it, which may be epolls, too.
    fn epoll(&mut self, random: &mut Random) {
        let fd = sys::call(libc::SYS_epoll_create1, &[0]);
        for _ in 0..random.below(5) {
            let (other, events) = (self.fd(random), random.next());
            let mut event = Bytes::new();
            event.u32(events as u32).u64(other);
            let add = libc::EPOLL_CTL_ADD as u64;
            if let Ok(fd) = fd {
                let _ = sys::call(libc::SYS_epoll_ctl, &[fd, add, other, event.address()]);
            }
        }
        self.hold(random, EPOLLS, fd);
    }

    /// A file without a name, perhaps sealed, and a mapping of it.
    fn memory_file(&mut self, random: &mut Random) {
        let name = c"fuzz".as_ptr().expose_provenance() as u64;
        let fd = sys::call(libc::SYS_memfd_create, &[name, random.below(4)]);
        let (size, seals, slot) = (random.below(40_000), random.below(64), random.below(7));
        if let Ok(fd) = fd {
            let _ = sys::call(libc::SYS_ftruncate, &[fd, size]);
            let flags = [libc::MAP_SHARED, libc::MAP_PRIVATE][random.below(2) as usize];
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED);
            let _ = sys::mmap(
                self.maps[slot as usize],
                8 * PAGE,
                prot,
                flags,
                fd as i32,
                0,
            );
            if random.below(3) == 0 {
                let add = libc::F_ADD_SEALS as u64;
                let _ = sys::call(libc::SYS_fcntl, &[fd, add, seals & !1]);
            }
        }
        self.hold(random, OTHERS, fd);
    }

    fn timer(&mut self, random: &mut Random) {
        let mut event = Bytes::new();
        event.sigevent(random, self.me);
        let mut id = 0u32;
        let at = (&raw mut id).expose_provenance() as u64;
        let clock = random.below(4);
        let slot = random.below(IDS as u64) as usize;
        let _ = sys::call(libc::SYS_timer_delete, &[self.timers[slot]]);
        if sys::call(libc::SYS_timer_create, &[clock, event.address(), at]).is_ok() {
            self.timers[slot] = u64::from(id);
            let spec = [0, random.below(3) * 3_000_000, 0, random.below(1 << 23)];
            let at = spec.as_ptr().expose_provenance() as u64;
            let _ = sys::call(libc::SYS_timer_settime, &[u64::from(id), 0, at, 0]);
        }
    }

    /// A segment, attached.
    fn shared_memory(&mut self, random: &mut Random) {
        let (size, slot) = (1 + random.below(8 * PAGE), random.below(7));
        let which = random.below(IDS as u64) as usize;
        if let Ok(id) = sys::call(libc::SYS_shmget, &[0, size, 0o1600]) {
            self.left.note(libc::SYS_shmget, id);
            let _ = sys::call(libc::SYS_shmctl, &[self.shm[which], libc::IPC_RMID as u64]);
            self.shm[which] = id;
            let _ = sys::call(
                libc::SYS_shmat,
                &[id, self.maps[slot as usize], libc::SHM_REMAP as u64],
            );
        }
    }

    fn semaphores_and_queue(&mut self, random: &mut Random) {
        let which = random.below(IDS as u64) as usize;
        let remove = libc::IPC_RMID as u64;
        if let Ok(id) = sys::call(libc::SYS_semget, &[0, 1 + random.below(6), 0o1600]) {
            self.left.note(libc::SYS_semget, id);
            let _ = sys::call(libc::SYS_semctl, &[self.sem[which], 0, remove]);
            self.sem[which] = id;
        }
        if let Ok(id) = sys::call(libc::SYS_msgget, &[0, 0o1600]) {
            self.left.note(libc::SYS_msgget, id);
            let _ = sys::call(libc::SYS_msgctl, &[self.msg[which], remove, 0]);
            self.msg[which] = id;
            let text = [1u64, 2, 3, 4, 5];
            let at = text.as_ptr().expose_provenance() as u64;
            let _ = sys::call(
                libc::SYS_msgsnd,
                &[id, at, random.below(33), libc::IPC_NOWAIT as u64],
            );
        }
    }

    /// A file, a directory, a device, inotify, or a file of /proc about this process.
    fn file(&mut self, random: &mut Random) {
        let (name, flags) = [
            ("f", libc::O_RDWR | libc::O_CREAT),
            ("g", libc::O_RDWR | libc::O_CREAT | libc::O_APPEND),
            (".", 0),
            (".", libc::O_PATH),
            ("/dev/zero", libc::O_RDWR),
            ("/proc/self/maps", 0),
            ("/proc/self/status", 0),
            ("/proc/self/fd", 0),
            ("/proc/net/tcp", 0),
            ("/proc/net/unix", 0),
            ("", 0),
        ][random.below(11) as usize];
        let fd = if name.is_empty() {
            sys::call(libc::SYS_inotify_init1, &[libc::O_NONBLOCK as u64])
        } else {
            sys::open(name, flags | libc::O_NONBLOCK, 0o600).map(|fd| fd as u64)
        };
        self.hold(random, OTHERS, fd);
    }
}

/// Pages between mappings: calls on pages near one do not meet the memory of the program.
const APART: u64 = 32;

/// Places for mappings, with anonymous memory, some shared; the last one is the vDSO.
fn mappings() -> [u64; 8] {
    let mut maps = [sys::auxval(libc::AT_SYSINFO_EHDR); 8];
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    if let Ok(base) = sys::mmap(0, 8 * APART * PAGE, libc::PROT_NONE, private, -1, 0) {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        for (slot, at) in maps[..7].iter_mut().enumerate() {
            *at = base + (slot as u64 * APART + APART / 2) * PAGE;
            let flags = libc::MAP_FIXED | [private, shared][slot % 2];
            let _ = sys::mmap(*at, 8 * PAGE, rw, flags, -1, 0);
        }
    }
    maps
}

fn half_close(random: &mut Random, fd: u64) {
    let how = random.below(8);
    if how < 3 {
        let _ = sys::call(libc::SYS_shutdown, &[fd, how]);
    }
}

/// A child that sleeps for five seconds, and ends with this process at the latest.
fn sleeping_child() -> Option<u64> {
    let pid = sys::fork().ok()?;
    if pid == 0 {
        let end = [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64];
        let _ = sys::call(libc::SYS_prctl, &end);
        for _ in 0..500 {
            sys::nap(10_000_000);
        }
        sys::exit(0)
    }
    Some(pid)
}
