//! shutdown(2) and close of sockets of TCP.

use alloc::sync::Arc;

use ksync::atomic::Ordering::SeqCst;
use vfs::error::FsError;

use super::late;
use super::pair::{Pair, State, TcpListener};
use super::ports::{self, Owner};
use super::protocol::Protocol;
use super::tcp::{Phase, TcpSocket};
use crate::error::Result;

impl TcpSocket {
    pub(super) fn shutdown(&self, reads: bool, writes: bool) -> Result<()> {
        if self.side().is_none() && self.shut_unconnected(reads) {
            return Ok(());
        }
        let result = match self.side() {
            Some(side) if side.state() != State::Close => Ok(()),
            _ => Err(FsError::NotConnected.into()),
        };
        if reads {
            self.inbox.stop_reading();
        }
        if writes {
            self.send_shut.store(true, SeqCst);
            if let Some(side) = self.side() {
                side.pair.finish(side.at);
            }
        }
        self.base.changes.wake_all();
        self.inbox.pollers.wake_all();
        result
    }

    /// shutdown(2) of a listener, or of a client that is late; returns whether it is one. Either may be used again as if it were new.
    fn shut_unconnected(&self, reads: bool) -> bool {
        let one = self.base.binding.lock();
        if let Some(listener) = self.listening() {
            if reads {
                self.unlisten(listener);
            }
            drop(one);
            self.base.changes.wake_all();
            return true;
        }
        if !self.give_up(FsError::ConnectionReset) {
            return false;
        }
        self.side();
        self.link.lock().phase = Phase::Unconnected;
        drop(one);
        self.base.changes.wake_all();
        true
    }

    /// Ends the connect of a client that is late with this error; returns whether it was.
    fn give_up(&self, error: FsError) -> bool {
        let late = self.link.lock().late.clone();
        let Some((pair, listener)) = late else {
            return false;
        };
        let failed = pair.fail(error);
        if failed {
            let same = |other: &Arc<Pair>| Arc::ptr_eq(other, &pair);
            listener.queue.remove_late(same);
            late::remove(&pair);
        }
        failed
    }

    /// Ends a listener: its connections are reset, and its port is free, unless bind(2) has said it.
    fn unlisten(&self, listener: &TcpListener) {
        let mut link = self.link.lock();
        let (fixed, bound) = (link.fixed, link.bound);
        let place = match fixed {
            true => link.place,
            false => link.place.take(),
        };
        drop(link);
        match place {
            Some(place) if fixed => {
                ports::set_entry(place, self.base.entry(bound, Owner::Idle));
            }
            Some(place) => ports::release(Protocol::Tcp, place),
            None => {}
        }
        listener.queue.close();
    }

    pub(super) fn close(&self) {
        if let Some(listener) = self.listening() {
            self.unlisten(listener);
        }
        self.give_up(FsError::ConnectionReset);
        let unread = self.inbox.close();
        if let Some(side) = self.side() {
            let hard = self.base.options.linger() == (true, 0);
            if (unread || hard) && side.state() != State::Close {
                side.pair.reset(side.at);
            } else {
                side.pair.finish(side.at);
                side.pair.note_close(side.at);
            }
        }
        let (place, late) = {
            let mut link = self.link.lock();
            (link.place.take(), link.late.take())
        };
        if let Some(place) = place {
            ports::release(Protocol::Tcp, place);
        }
        drop(late);
    }
}
