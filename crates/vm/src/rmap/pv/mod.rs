//! Reverse maps that list an entry for each mapping of a page: FreeBSD's, as rivals of backings.
//!
//! | file | subject |
//! |---|---|
//! | `chunk` | frames of entries: what is stored |
//! | `chunks` | a pmap's chunks: where entries come from |
//! | `list` | a page's list |
//! | `lists` | what the designs share |
//! | `pmaps` | lists of the pmaps that have chunks |
//! | `reclaim` | what happens when no chunk is to be had |
//! | `obm` | the design with a mutex of one byte for each page |
//! | `obm_reclaim` | from which pmap it takes a chunk then |
//! | `stock` | the design with locks that are hashed by frame |
//! | `lru` | its list of all chunks |
//! | `stock_reclaim` | how it takes the first of them |
#![expect(
    unsafe_code,
    reason = "entries lie in frames, and lead to pmaps that they do not own"
)]

mod chunk;
mod chunks;
mod list;
mod lists;
#[cfg(feature = "pv-stock")]
mod lru;
#[cfg(feature = "pv-obm")]
mod obm;
#[cfg(feature = "pv-obm")]
mod obm_reclaim;
mod pmaps;
mod reclaim;
#[cfg(feature = "pv-stock")]
mod stock;
#[cfg(feature = "pv-stock")]
mod stock_reclaim;

pub use self::chunks::{PmapChunks, PvChunksLock};
pub use self::lists::{InTheWay, Lists, Ticket};
#[cfg(feature = "pv-stock")]
pub use self::lru::PvLruLock;
#[cfg(feature = "pv-obm")]
pub use self::obm::{PvListLock, PvObm};
pub use self::pmaps::PvPmapsLock;
pub use self::reclaim::PvReclaimLock;
#[cfg(feature = "pv-stock")]
pub use self::stock::{PmapLock, PvBucketLock, PvStock};
