//! Reverse maps that list an entry for each mapping of a page: FreeBSD's, as rivals of backings.
//!
//! | file | subject |
//! |---|---|
//! | `chunk` | frames of entries: what is stored |
//! | `chunks` | a pmap's chunks: where entries come from |
//! | `list` | a page's list |
//! | `lists` | what the designs share |
//! | `pmaps` | lists of the pmaps that have chunks |
//! | `reclaim` | entries of other pmaps, when no chunk is to be had |
//! | `obm` | the design with a mutex of one byte for each page |
#![expect(
    unsafe_code,
    reason = "entries lie in frames, and lead to pmaps that they do not own"
)]

mod chunk;
mod chunks;
mod list;
mod lists;
mod obm;
mod pmaps;
mod reclaim;

pub use self::chunks::{PmapChunks, PvChunksLock};
pub use self::lists::{InTheWay, Lists, Ticket};
pub use self::obm::{PvListLock, PvObm};
pub use self::pmaps::PvPmapsLock;
pub use self::reclaim::PvReclaimLock;
