//! All rows of a table, as an answer of several datagrams.
//!
//! Guarantee: each row that is there from the first datagram to the last is in one of them, once; a last message ends the answer.
//!
//! A listing keeps how many rows it has written, and nothing of the table. So it holds no lock and no memory between two datagrams.

use super::message::{Answer, Refusal, Writer, flag, kind};
use super::rows;
use crate::error::SocketError;
use crate::inet::endpoint::{Family, Ip};
use crate::interface::{self, Interface, Prefix, Route};

/// Rows that are asked for.
#[derive(Clone, Copy, Debug)]
pub enum Table {
    /// None: the table is empty, or no row is as the request says.
    Empty,
    /// Interfaces, as a family sees them.
    Interfaces(u8),
    /// Addresses of a family, or all; of an interface, or for 0 of all.
    Addresses(Option<Family>, u32),
    /// Routes.
    Routes(Routes),
    /// Rules of a family, or all.
    Rules(Option<Family>),
}

/// Routes that are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Routes {
    /// Of a family, or all.
    pub family: Option<Family>,
    /// Of this fate (an RTN), or for 0 of any.
    pub fate: u8,
    /// To this interface, or for 0 to any.
    pub interface: u32,
}

/// Whether messages say that rows were chosen: as in Linux, the rows themselves and the end may differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chosen {
    /// The rows say so.
    pub rows: bool,
    /// The end says so.
    pub end: bool,
}

/// An answer that is being written.
#[derive(Debug)]
pub struct Listing {
    table: Table,
    answer: Answer,
    chosen: Chosen,
    /// Why it ends before its first row.
    refusal: Option<Refusal>,
    /// Rows that are written.
    done: usize,
}

fn family_of(ip: Ip) -> Family {
    match ip.as_v4() {
        Some(_) => Family::V4,
        None => Family::V6,
    }
}

fn families(asked: Option<Family>) -> impl Iterator<Item = Family> {
    let both = [Family::V4, Family::V6].into_iter();
    both.filter(move |&family| asked.is_none_or(|asked| asked == family))
}

/// Addresses, those of IPv4 first.
fn addresses(asked: Option<Family>, index: u32) -> impl Iterator<Item = (Interface, Prefix)> {
    families(asked).flat_map(move |family| {
        let chosen = interface::all().filter(move |i| index == 0 || i.index == index);
        chosen.flat_map(move |interface| {
            let all = interface.addresses.iter();
            let of_family = all.filter(move |prefix| family_of(prefix.ip) == family);
            of_family.map(move |prefix| (interface, *prefix))
        })
    })
}

impl Routes {
    fn all(self) -> impl Iterator<Item = &'static Route> {
        interface::routes().iter().filter(move |route| {
            let family = family_of(route.to.ip);
            self.family.is_none_or(|asked| asked == family)
                && [0, route.fate as u8].contains(&self.fate)
                && [0, route.interface].contains(&self.interface)
        })
    }
}

impl Table {
    /// Writes the row behind the first `n`; returns whether there is one.
    fn row(&self, n: usize, out: &mut Writer, answer: Answer) -> bool {
        let written = match *self {
            Table::Empty => None,
            Table::Interfaces(family) => interface::all()
                .nth(n)
                .map(|row| rows::interface(out, answer, &row, family)),
            Table::Addresses(family, index) => addresses(family, index)
                .nth(n)
                .map(|(interface, prefix)| rows::address(out, answer, &interface, &prefix)),
            Table::Routes(routes) => routes
                .all()
                .nth(n)
                .map(|route| rows::route(out, answer, route)),
            Table::Rules(family) => rows::rules(family)
                .nth(n)
                .map(|rule| rows::rule(out, answer, rule)),
        };
        written.is_some()
    }
}

impl Listing {
    /// The answer with these rows, or the end with a refusal at once, as in Linux.
    pub fn new(rows: Result<Table, Refusal>, answer: Answer, chosen: Chosen) -> Listing {
        let (table, refusal) = match rows {
            Ok(table) => (table, None),
            Err(refusal) => (Table::Empty, Some(refusal)),
        };
        Listing {
            table,
            answer,
            chosen,
            refusal,
            done: 0,
        }
    }

    /// Writes the next datagram, of up to `room` bytes or one row; returns it, and how many rows are written then, or `None` if it ends the answer. The
    /// listing goes on from there once [`advance`](Self::advance) is called: a datagram that is lost can be written again. `number` says what
    /// stands for an error, `texts` whether its text is to be told.
    ///
    /// # Errors
    /// `NoBuffers`.
    pub fn write(
        &self,
        room: usize,
        number: fn(SocketError) -> u16,
        texts: bool,
    ) -> Result<(Writer, Option<usize>), SocketError> {
        let mut out = Writer::new(room.saturating_add(rows::LONGEST))?;
        let mut done = self.done;
        loop {
            let before = out.bytes().len();
            let more = self
                .table
                .row(done, &mut out, self.answer(self.chosen.rows));
            if !more {
                // As in Linux 6.1 the end is alone: programs look for it in the first message of a datagram.
                if before > 0 {
                    return Ok((out, Some(done)));
                }
                self.end(&mut out, number, texts);
                return Ok((out, None));
            }
            // A row that does not fit into a datagram of its own would end the answer: none is as long.
            if before > 0 && (out.bytes().len() > room || !out.fits()) {
                out.truncate(before);
                return Ok((out, Some(done)));
            }
            done += 1;
        }
    }

    /// Says that so many rows are written.
    pub fn advance(&mut self, done: usize) {
        self.done = done;
    }

    fn answer(&self, chosen: bool) -> Answer {
        Answer {
            flags: flag::MULTI | if chosen { flag::FILTERED } else { 0 },
            ..self.answer
        }
    }

    fn end(&self, out: &mut Writer, number: fn(SocketError) -> u16, texts: bool) {
        let mut answer = self.answer(self.chosen.end);
        let text = self.refusal.and_then(|refusal| refusal.text);
        let text = text.filter(|_| texts);
        if text.is_some() {
            answer.flags |= flag::TEXT;
        }
        let message = out.begin(kind::DONE, answer);
        let errno = self.refusal.map_or(0, |refusal| number(refusal.error));
        out.put(&(-i32::from(errno)).to_ne_bytes());
        if let Some(text) = text {
            out.text(super::message::TEXT, text.as_bytes());
        }
        out.end(message);
    }
}
