//! Linux error numbers, for the one crate that speaks of errors to programs.

/// Defines a type of Linux error numbers: 1 to 4095, as a system call returns them negated.
///
/// The crate that answers programs calls it once. The type is its own, so it alone says which number an error of the layers
/// beneath is, and they know none.
///
/// The number is a whole word, so that `Result<u64, Errno>`, which every system call returns, travels in two registers.
#[macro_export]
macro_rules! errno_type {
    ($(#[$meta:meta])* $vis:vis struct $name:ident;) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        $vis struct $name(u64);

        #[allow(dead_code, reason = "all that Linux has, used or not")]
        impl $name {
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

            /// Another name for [`EAGAIN`](Self::EAGAIN).
            pub const EWOULDBLOCK: Self = Self::EAGAIN;
            /// Another name for [`EOPNOTSUPP`](Self::EOPNOTSUPP).
            pub const ENOTSUP: Self = Self::EOPNOTSUPP;
            /// Another name for [`EDEADLK`](Self::EDEADLK).
            pub const EDEADLOCK: Self = Self::EDEADLK;
            /// See [`restart::UNLESS_HANDLED`]($crate::restart::UNLESS_HANDLED).
            pub const ERESTARTSYS: Self = Self($crate::restart::UNLESS_HANDLED.wrapping_neg());
            /// See [`restart::ALWAYS`]($crate::restart::ALWAYS).
            pub const ERESTARTNOINTR: Self = Self($crate::restart::ALWAYS.wrapping_neg());
            /// See [`restart::WITHOUT_HANDLER`]($crate::restart::WITHOUT_HANDLER).
            pub const ERESTARTNOHAND: Self = Self($crate::restart::WITHOUT_HANDLER.wrapping_neg());
            /// See [`restart::BY_BLOCK`]($crate::restart::BY_BLOCK).
            pub const ERESTART_RESTARTBLOCK: Self = Self($crate::restart::BY_BLOCK.wrapping_neg());
            /// Kernel-internal: the call starts again with a full register frame; never leaves the dispatcher. Has the
            /// value of ERESTARTNOINTR, so that only calls with a full frame may return that.
            pub const EFULLFRAME: Self = Self::ERESTARTNOINTR;
        }

        $crate::__errnos! {
            $name:
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

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                write!(f, "{} ({})", self.name(), self.0)
            }
        }
    };
}

/// The numbers of [`errno_type!`](crate::errno_type).
#[doc(hidden)]
#[macro_export]
macro_rules! __errnos {
    ($type:ident: $($name:ident),* $(,)?) => {
        #[allow(dead_code, reason = "all that Linux has, used or not")]
        impl $type {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Self = Self($crate::raw::errno::$name as u64);
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

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::format;

    errno_type! {
        /// As the kernel defines it.
        pub struct Errno;
    }

    #[test]
    fn numbers_and_names_are_those_of_the_manual() {
        assert_eq!((Errno::ENOENT.get(), Errno::ENOENT.name()), (2, "ENOENT"));
        assert_eq!(Errno::EAGAIN, Errno::EWOULDBLOCK);
        assert_eq!(Errno::ENOSYS.get(), 38);
        assert_eq!(Errno::ENOMEM.as_return(), (-12i64) as u64);
        assert_eq!(format!("{}", Errno::EINVAL), "EINVAL (22)");
        assert_eq!(Errno::ERESTARTSYS.get(), 512);
    }
}
