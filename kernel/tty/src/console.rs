//! The console: the terminal at the serial line, and the devices that open it.
//!
//! A kernel thread takes bytes from the line and passes them to the terminal. There they are echoed and edited, and may
//! send signals; an interrupt handler may do none of this.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;

use hal::console;
use ksync::Once;
use proc::UserThreadExt;
use task::current::current;
use vfs::devices::number;
use vfs::error::{FsError, Result};
use vfs::file::{Kind, o};

use super::file::TtyFile;
use super::terminal::Tty;

hal::machine_static! {
    static CONSOLE: Once<Arc<Tty>> = Once::new();
}

fn tty() -> &'static Arc<Tty> {
    CONSOLE.get_or_init(|| {
        // At boot, where there is memory for more than that.
        let tty = Tty::serial(number(4, 64), console::write_bytes);
        Arc::new(tty.expect("memory for the console"))
    })
}

/// Passes a byte from the serial line to the terminal. Called by the console's thread; may sleep.
pub fn input(byte: u8) {
    tty().arrive(&[byte]);
}

/// Opens the serial line. If the caller leads a session without a terminal, and the line controls no session, it becomes
/// the controlling terminal, unless `O_NOCTTY` is given or the line is opened for writing only. May sleep for the
/// terminal's lock, as the other two functions here.
///
/// # Errors
/// Busy: the terminal is exclusive (TIOCEXCL), and the caller is not privileged.
pub fn open_line(flags: u32) -> Result<Kind> {
    open_file(tty().clone(), flags)
}

/// Opens a terminal, which becomes the controlling terminal as [`open_line`] says. Errors: those of [`TtyFile::open`].
pub(super) fn open_file(tty: Arc<Tty>, flags: u32) -> Result<Kind> {
    let file = TtyFile::open(tty.clone())?;
    if flags & o::NOCTTY == 0 && flags & o::ACCMODE != o::WRONLY {
        // open succeeds even if the caller may not have it as the controlling terminal.
        let _ = tty.set_controlling(Some(&file), true, false);
    }
    Ok(Kind::Other(Box::new(file)))
}

/// Opens the console: the same terminal, for messages. It does not become the controlling terminal by this.
///
/// # Errors
/// Busy, as for [`open_line`].
pub fn open_console() -> Result<Kind> {
    Ok(Kind::Other(Box::new(TtyFile::console(tty().clone())?)))
}

/// Opens the controlling terminal of the caller's session.
///
/// # Errors
/// No device or address: the session has no controlling terminal. Busy, as for [`open_line`]. I/O: its master is closed, or has locked it.
pub fn open_own() -> Result<Kind> {
    let session = current().process().session();
    let terminal: Option<Arc<dyn Any + Send + Sync>> =
        session.and_then(|s| s.terminal()).map(|t| t as _);
    let tty = terminal.and_then(|t| t.downcast::<Tty>().ok());
    let tty = tty.ok_or(FsError::NoDevAddr)?;
    Ok(Kind::Other(Box::new(TtyFile::open(tty)?)))
}
