//! Capabilities, as capabilities(7) names them, and sets of them.

/// A capability. The numbers are Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cap {
    /// Change the owner of files.
    Chown = 0,
    /// Override the mode bits of files.
    DacOverride = 1,
    /// Read any file, search any directory.
    DacReadSearch = 2,
    /// Do what otherwise only a file's owner may do.
    Fowner = 3,
    /// Keep set-user-ID and set-group-ID bits when a file changes.
    Fsetid = 4,
    /// Signal any process.
    Kill = 5,
    /// Take any group id.
    Setgid = 6,
    /// Take any user id.
    Setuid = 7,
    /// Change one's bounding set and secure bits.
    Setpcap = 8,
    /// Change the flags "immutable" and "append only".
    LinuxImmutable = 9,
    /// Bind low ports.
    NetBindService = 10,
    /// Broadcast.
    NetBroadcast = 11,
    /// Configure the network.
    NetAdmin = 12,
    /// Use raw sockets.
    NetRaw = 13,
    /// Lock memory without limit.
    IpcLock = 14,
    /// Override the mode bits of System V objects.
    IpcOwner = 15,
    /// Load modules.
    SysModule = 16,
    /// Access ports and physical memory.
    SysRawio = 17,
    /// Change the root directory.
    SysChroot = 18,
    /// Inspect and change any process.
    SysPtrace = 19,
    /// Switch process accounting.
    SysPacct = 20,
    /// Administer the system: mounts, host name and much else.
    SysAdmin = 21,
    /// Restart the machine.
    SysBoot = 22,
    /// Raise priorities, bind any thread to CPUs.
    SysNice = 23,
    /// Override resource limits.
    SysResource = 24,
    /// Set the clock.
    SysTime = 25,
    /// Hang terminals up.
    SysTtyConfig = 26,
    /// Make device nodes.
    Mknod = 27,
    /// Take leases of files.
    Lease = 28,
    /// Write to the audit log.
    AuditWrite = 29,
    /// Configure auditing.
    AuditControl = 30,
    /// Set file capabilities.
    Setfcap = 31,
    /// Override mandatory access control.
    MacOverride = 32,
    /// Configure mandatory access control.
    MacAdmin = 33,
    /// Read the kernel's log and addresses.
    Syslog = 34,
    /// Set wake-up timers.
    WakeAlarm = 35,
    /// Keep the system awake.
    BlockSuspend = 36,
    /// Read the audit log.
    AuditRead = 37,
    /// Observe performance.
    Perfmon = 38,
    /// Load BPF programs.
    Bpf = 39,
    /// Checkpoint and restore processes.
    CheckpointRestore = 40,
}

/// A set of capabilities: bit N is capability N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapSet(u64);

impl CapSet {
    /// The number of the last capability.
    pub const LAST: u32 = Cap::CheckpointRestore as u32;
    /// The empty set.
    pub const EMPTY: CapSet = CapSet(0);
    /// All capabilities.
    pub const ALL: CapSet = CapSet((1 << (Self::LAST + 1)) - 1);
    /// The capabilities that setfsuid(2) adds and removes.
    pub const FILES: CapSet = Self::of(&[
        Cap::Chown,
        Cap::DacOverride,
        Cap::DacReadSearch,
        Cap::Fowner,
        Cap::Fsetid,
        Cap::LinuxImmutable,
        Cap::Mknod,
        Cap::MacOverride,
    ]);

    /// The set of `caps`.
    pub const fn of(caps: &[Cap]) -> CapSet {
        let (mut bits, mut i) = (0, 0);
        while i < caps.len() {
            bits |= 1 << caps[i] as u32;
            i += 1;
        }
        CapSet(bits)
    }

    /// The set with these bits; unknown ones are dropped, as capset(2) does.
    pub const fn from_bits(bits: u64) -> CapSet {
        CapSet(bits & Self::ALL.0)
    }

    /// The set of the capability with this number; `None` if there is none.
    pub fn one(number: u64) -> Option<CapSet> {
        (number <= Self::LAST.into()).then(|| CapSet(1 << number))
    }

    /// The bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether `cap` is in the set.
    #[inline]
    pub const fn has(self, cap: Cap) -> bool {
        self.0 & 1 << cap as u32 != 0
    }

    /// Whether it is a subset of `other`.
    pub const fn is_within(self, other: CapSet) -> bool {
        self.0 & !other.0 == 0
    }

    /// The union of both sets.
    #[must_use]
    pub const fn union(self, other: CapSet) -> CapSet {
        CapSet(self.0 | other.0)
    }

    /// The intersection of both sets.
    #[must_use]
    pub const fn both(self, other: CapSet) -> CapSet {
        CapSet(self.0 & other.0)
    }

    /// The set without the members of `other`.
    #[must_use]
    pub const fn without(self, other: CapSet) -> CapSet {
        CapSet(self.0 & !other.0)
    }
}

/// The five sets of a thread.
///
/// They apply to the whole machine. To make them apply to a part of it, its owner becomes a field here, and
/// [`Cred::capable`](crate::Cred::capable) takes the owner of the object as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Kept by exec if the program's file lists them, which no file can do here.
    pub inheritable: CapSet,
    /// The capabilities that the thread may make effective.
    pub permitted: CapSet,
    /// The capabilities that checks use.
    pub effective: CapSet,
    /// The most that exec can give.
    pub bounding: CapSet,
    /// Kept by exec of a program that has no privileges of its own. Always within `permitted` and `inheritable`.
    pub ambient: CapSet,
}

impl Caps {
    /// The sets of the first process: all except `inheritable` and `ambient`.
    pub const FULL: Caps = Caps {
        inheritable: CapSet::EMPTY,
        permitted: CapSet::ALL,
        effective: CapSet::ALL,
        bounding: CapSet::ALL,
        ambient: CapSet::EMPTY,
    };
}

/// The secure bits of a thread: the parts of root's special treatment that are disabled. Bit N + 1 locks bit N. The
/// numbers are Linux's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecureBits(u8);

impl SecureBits {
    /// Nothing is disabled.
    pub const NONE: SecureBits = SecureBits(0);
    /// Exec gives user 0 no capabilities.
    pub const NOROOT: SecureBits = SecureBits(1);
    /// Changes of user ids do not change the sets.
    pub const NO_SETUID_FIXUP: SecureBits = SecureBits(4);
    /// Leaving user 0 keeps the permitted set, until exec.
    pub const KEEP_CAPS: SecureBits = SecureBits(16);
    /// The ambient set cannot grow.
    pub const NO_AMBIENT_RAISE: SecureBits = SecureBits(64);
    const BITS: u64 = 0x55;
    const LOCKS: u64 = 0xaa;

    /// The bits.
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Whether `bit` is set.
    pub const fn has(self, bit: SecureBits) -> bool {
        self.0 & bit.0 != 0
    }

    /// Whether `bit` is locked.
    pub const fn is_locked(self, bit: SecureBits) -> bool {
        self.0 & bit.0 << 1 != 0
    }

    /// With `bit` set or not.
    #[must_use]
    pub const fn with(self, bit: SecureBits, on: bool) -> SecureBits {
        SecureBits(self.0 & !bit.0 | if on { bit.0 } else { 0 })
    }

    /// Changes to `bits`, if the present locks allow it: locked bits and locks cannot change.
    pub fn changed_to(self, bits: u64) -> Option<SecureBits> {
        let now = self.bits();
        let locked = (now & Self::LOCKS) >> 1;
        let refused = locked & (now ^ bits) != 0
            || now & Self::LOCKS & !bits != 0
            || bits & !(Self::BITS | Self::LOCKS) != 0;
        (!refused).then_some(SecureBits(bits as u8))
    }
}
