//! What a fork that fails late tells the files of its caller: nothing, for no descriptor of the caller was closed.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use hal::UserFrame;
use proc::fork::{self, CloneArgs, ForkError, Opening};
use proc::group::setpgid;
use proc::{Process, with_files};
use signals::{USR1, as_child, block, catch, kill_group};
use support::me;
use vfs::file::{File, FileOps, Kind, o};

/// A file that counts the descriptors of which it is told that they were closed.
struct Told(Arc<AtomicU32>);

impl FileOps for Told {
    fn flush(&self, _: &File) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// The new process would miss a signal to its group, so it is not made.
struct Signalled;

impl Opening for Signalled {
    fn prepare(&mut self, _: &Arc<Process>) -> Result<(), ForkError> {
        assert_eq!(kill_group(me().pid(), USR1), Ok(()));
        Ok(())
    }

    fn complete(&mut self) {}
}

#[test]
fn a_fork_that_fails_closes_no_descriptor_of_its_caller() {
    as_child(|| {
        assert_eq!(setpgid(me().pid(), me().pid()), Ok(()));
        catch(USR1);
        let told = Arc::new(AtomicU32::new(0));
        let kind = Kind::Other(Box::new(Told(told.clone())));
        let file = File::open(None, kind, o::RDWR);
        let fd = with_files(|files| files.add(file, false, 0, 10))
            .expect("a table")
            .expect("room");
        let made = fork::clone(
            &CloneArgs::default(),
            &UserFrame::default(),
            Some(&mut Signalled),
        );
        assert_eq!((made, told.load(SeqCst)), (Err(ForkError::Signal), 0));
        block(&[USR1]);
        drop(with_files(|files| files.remove(fd)));
        assert_eq!(told.load(SeqCst), 1);
    });
}
