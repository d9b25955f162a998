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
//! | `stock` | the design with locks that are hashed by frame |
//! | `lru` | its list of all chunks |
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
mod pmaps;
#[cfg(feature = "pv-obm")]
mod reclaim;
#[cfg(feature = "pv-stock")]
mod stock;

pub use self::chunks::{PmapChunks, PvChunksLock};
pub use self::lists::{InTheWay, Lists, Ticket};
#[cfg(feature = "pv-stock")]
pub use self::lru::PvLruLock;
#[cfg(feature = "pv-obm")]
pub use self::obm::{PvListLock, PvObm};
pub use self::pmaps::PvPmapsLock;
#[cfg(feature = "pv-obm")]
pub use self::reclaim::PvReclaimLock;
#[cfg(feature = "pv-stock")]
pub use self::stock::{PmapLock, PvBucketLock, PvStock};
