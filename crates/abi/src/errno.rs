//! Linux error numbers.

use core::fmt;

use crate::raw::errno as values;

/// A Linux error number: 1 to 4095, as a system call returns it negated.
///
/// A whole word, so that `Result<u64, Errno>`, which every system call returns, travels in two registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(u64);

impl Errno {
    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0 as u16
    }

    /// What a system call returns in its result register: the number negated.
    #[inline]
    pub const fn as_return(self) -> u64 {
        self.0.wrapping_neg()
    }

    /// Another name for [`Errno::EAGAIN`].
    pub const EWOULDBLOCK: Self = Self::EAGAIN;
    /// Another name for [`Errno::EOPNOTSUPP`].
    pub const ENOTSUP: Self = Self::EOPNOTSUPP;
    /// Another name for [`Errno::EDEADLK`].
    pub const EDEADLOCK: Self = Self::EDEADLK;
    /// Kernel-internal: a signal came; restart the call, or fail with EINTR if a handler without
    /// SA_RESTART runs. Never reaches a program, but a tracer.
    pub const ERESTARTSYS: Self = Self(512);
    /// Kernel-internal: restart the call, after whatever handlers.
    pub const ERESTARTNOINTR: Self = Self(513);
    /// Kernel-internal: as ERESTARTSYS, but restart only where no handler runs.
    pub const ERESTARTNOHAND: Self = Self(514);
    /// Kernel-internal: the call begins again with all of the user's registers at hand; never leaves the dispatcher.
    pub const EFULLFRAME: Self = Self(513);
    /// Kernel-internal: as ERESTARTNOHAND, through restart_syscall.
    pub const ERESTART_RESTARTBLOCK: Self = Self(516);
}

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Self = Self(values::$name as u64);
            )*

            /// The symbolic name, or `E?` for a number without one.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    Self::ERESTARTSYS => "ERESTARTSYS",
                    Self::ERESTARTNOINTR => "ERESTARTNOINTR",
                    Self::ERESTARTNOHAND => "ERESTARTNOHAND",
                    Self::ERESTART_RESTARTBLOCK => "ERESTART_RESTARTBLOCK",
                    _ => "E?",
                }
            }
        }
    };
}

errnos! {
    EPERM, ENOENT, ESRCH, EINTR, EIO, ENXIO, E2BIG, ENOEXEC, EBADF, ECHILD, EAGAIN, ENOMEM,
    EACCES, EFAULT, ENOTBLK, EBUSY, EEXIST, EXDEV, ENODEV, ENOTDIR, EISDIR, EINVAL, ENFILE,
    EMFILE, ENOTTY, ETXTBSY, EFBIG, ENOSPC, ESPIPE, EROFS, EMLINK, EPIPE, EDOM, ERANGE, EDEADLK,
    ENAMETOOLONG, ENOLCK, ENOSYS, ENOTEMPTY, ELOOP, ENOMSG, EIDRM, ECHRNG, EL2NSYNC, EL3HLT,
    EL3RST, ELNRNG, EUNATCH, ENOCSI, EL2HLT, EBADE, EBADR, EXFULL, ENOANO, EBADRQC, EBADSLT,
    EBFONT, ENOSTR, ENODATA, ETIME, ENOSR, ENONET, ENOPKG, EREMOTE, ENOLINK, EADV, ESRMNT,
    ECOMM, EPROTO, EMULTIHOP, EDOTDOT, EBADMSG, EOVERFLOW, ENOTUNIQ, EBADFD, EREMCHG, ELIBACC,
    ELIBBAD, ELIBSCN, ELIBMAX, ELIBEXEC, EILSEQ, ERESTART, ESTRPIPE, EUSERS, ENOTSOCK,
    EDESTADDRREQ, EMSGSIZE, EPROTOTYPE, ENOPROTOOPT, EPROTONOSUPPORT, ESOCKTNOSUPPORT,
    EOPNOTSUPP, EPFNOSUPPORT, EAFNOSUPPORT, EADDRINUSE, EADDRNOTAVAIL, ENETDOWN, ENETUNREACH,
    ENETRESET, ECONNABORTED, ECONNRESET, ENOBUFS, EISCONN, ENOTCONN, ESHUTDOWN, ETOOMANYREFS,
    ETIMEDOUT, ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, EALREADY, EINPROGRESS, ESTALE, EUCLEAN,
    ENOTNAM, ENAVAIL, EISNAM, EREMOTEIO, EDQUOT, ENOMEDIUM, EMEDIUMTYPE, ECANCELED, ENOKEY,
    EKEYEXPIRED, EKEYREVOKED, EKEYREJECTED, EOWNERDEAD, ENOTRECOVERABLE, ERFKILL, EHWPOISON,
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// A program named memory that it may not read, or write, so. EFAULT to every call that has not got anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFault;

impl From<UserFault> for Errno {
    fn from(_: UserFault) -> Errno {
        Errno::EFAULT
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::Errno;
    use alloc::format;

    #[test]
    fn numbers_and_names_are_those_of_the_manual() {
        assert_eq!((Errno::ENOENT.get(), Errno::ENOENT.name()), (2, "ENOENT"));
        assert_eq!(Errno::EAGAIN, Errno::EWOULDBLOCK);
        assert_eq!(Errno::ENOSYS.get(), 38);
        assert_eq!(Errno::ENOMEM.as_return(), (-12i64) as u64);
        assert_eq!(format!("{}", Errno::EINVAL), "EINVAL (22)");
    }
}
