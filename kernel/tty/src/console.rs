//! The console: the terminal at the serial line, and what opens it.
//!
//! A kernel thread takes bytes from the line and gives them to the terminal: it echoes, edits, and sends signals, none of
//! which an interrupt handler may do.

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

use super::Tty;
use super::file::TtyFile;

static CONSOLE: Once<Arc<Tty>> = Once::new();

fn tty() -> &'static Arc<Tty> {
    CONSOLE.get_or_init(|| Arc::new(Tty::new(number(4, 64), console::write_bytes)))
}

/// Takes a byte from the serial line; called by the console's thread, which may sleep.
pub fn input(byte: u8) {
    tty().arrive(byte);
}

/// Opens the serial line. A session leader without a terminal gets it, unless `O_NOCTTY` is given.
///
/// # Errors
/// Busy, here and below: the terminal opens for the privileged alone.
pub fn open_line(flags: u32) -> Result<Kind> {
    let tty = tty();
    tty.admit()?;
    let file = TtyFile::new(tty.clone());
    if flags & o::NOCTTY == 0 && flags & o::ACCMODE != o::WRONLY {
        // Not being entitled to it is no error of open.
        let _ = tty.set_controlling(&file, true, false);
    }
    Ok(Kind::Other(Box::new(file)))
}

/// Opens the console: the same terminal, for messages. It is never taken as the controlling one by this.
pub fn open_console() -> Result<Kind> {
    tty().admit()?;
    Ok(Kind::Other(Box::new(TtyFile::console(tty().clone()))))
}

/// Opens the caller's controlling terminal.
pub fn open_own() -> Result<Kind> {
    let session = current().process().session();
    let terminal: Option<Arc<dyn Any + Send + Sync>> =
        session.and_then(|s| s.terminal()).map(|t| t as _);
    let tty = terminal.and_then(|t| t.downcast::<Tty>().ok());
    let tty = tty.ok_or(FsError::NoDevAddr)?;
    tty.admit()?;
    Ok(Kind::Other(Box::new(TtyFile::new(tty))))
}
