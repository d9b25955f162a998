//! Random operations on pairs of sockets, and on a slow model of them, which has a list of what was sent and looks at it byte by byte.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use std::collections::VecDeque;

use net::SocketError;
use net::ids::Ids;
use net::rights::Rights;
use net::socket::{Message, Receive, Type};
use support::on;
use users::*;
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::poll::PollMask;
use vm_host::random::Random;

struct Nothing;
impl FileOps for Nothing {}

/// One send that is not wholly received.
#[derive(Clone)]
struct Sent {
    bytes: VecDeque<u8>,
    whole: usize,
    uid: Option<u32>,
    files: usize,
    /// Nothing is added behind its last byte.
    barrier: bool,
}

/// One direction.
#[derive(Default)]
struct Way {
    sends: VecDeque<Sent>,
    shut: bool,
    shows_ids: bool,
}

/// What a receive finds: bytes, length of the packet, uid, number of descriptors.
type Found = (Vec<u8>, usize, Option<u32>, usize);

struct Model {
    kind: Type,
    /// The way to each side.
    to: [Way; 2],
    reset: [bool; 2],
    closed: [bool; 2],
}

impl Model {
    fn send(
        &mut self,
        side: usize,
        bytes: &[u8],
        claimed: Option<u32>,
        files: usize,
    ) -> Result<usize, SocketError> {
        let shows = self.to[side].shows_ids;
        let way = &mut self.to[1 - side];
        if way.shut {
            return Err(match self.kind {
                Type::Stream => PIPE,
                _ => SocketError::QuietPipe,
            });
        }
        let own = (shows || way.shows_ids).then_some(0);
        if self.kind != Type::Stream || !bytes.is_empty() {
            way.sends.push_back(Sent {
                bytes: bytes.iter().copied().collect(),
                whole: bytes.len(),
                uid: claimed.or(own),
                files,
                barrier: files > 0,
            });
        }
        Ok(bytes.len())
    }

    fn receive(&mut self, side: usize, most: usize, peek: bool) -> Result<Found, SocketError> {
        let packets = self.kind != Type::Stream;
        let way = &mut self.to[side];
        if (packets || way.sends.is_empty()) && self.reset[side] {
            self.reset[side] = false;
            return Err(RESET);
        }
        if way.sends.is_empty() {
            return match way.shut {
                true => Ok((Vec::new(), 0, None, 0)),
                false => Err(AGAIN),
            };
        }
        let before = way.sends.clone();
        let uid = way.sends[0].uid;
        let shown = way.shows_ids.then(|| uid.unwrap_or(65534));
        let mut found = (Vec::new(), 0, shown, 0);
        if packets && let Some(first) = way.sends.pop_front() {
            found.1 = first.whole;
            found.3 = first.files;
            found.0 = first.bytes.into_iter().take(most).collect();
        }
        while !packets && found.0.len() < most && !way.sends.is_empty() {
            let first = &mut way.sends[0];
            if way.shows_ids && first.uid != uid {
                break;
            }
            found.0.extend(first.bytes.pop_front());
            found.3 += std::mem::take(&mut first.files);
            let stop = first.barrier && found.3 > 0;
            if first.bytes.is_empty() {
                way.sends.pop_front();
                if stop {
                    break;
                }
            }
        }
        if !packets {
            found.1 = found.0.len();
        }
        if peek {
            way.sends = before;
        }
        Ok(found)
    }

    fn shutdown(&mut self, side: usize, reads: bool, writes: bool) {
        self.to[side].shut |= reads;
        self.to[1 - side].shut |= writes;
    }

    fn close(&mut self, side: usize) {
        self.closed[side] = true;
        self.reset[1 - side] |= !self.to[side].sends.is_empty();
        self.to[side].sends.clear();
        self.shutdown(side, true, true);
    }

    fn readable(&self, side: usize) -> bool {
        !self.to[side].sends.is_empty() || self.to[side].shut
    }
}

/// A barrier behind descriptors that were received with an earlier part of their send is gone, as in Linux.
fn forget_barriers(way: &mut Way) {
    for send in &mut way.sends {
        send.barrier = send.files > 0;
    }
}

fn play(seed: u64, steps: usize) {
    let mut random = Random(seed);
    let kind = [STREAM, SEQPACKET][random.below(2)];
    let (a, b) = quick_pair(kind);
    let mut files = [Some(a), Some(b)];
    let other = File::open(None, Kind::Other(Box::new(Nothing)), o::RDWR);
    let mut model = Model {
        kind,
        to: [Way::default(), Way::default()],
        reset: [false; 2],
        closed: [false; 2],
    };
    for step in 0..steps {
        let side = random.below(2);
        let Some(file) = &files[side] else { continue };
        let context = format!("seed {seed}, step {step}, {kind:?}");
        match random.below(40) {
            0..=14 => send_both(&mut model, side, file, &other, &mut random, &context),
            15..=35 => receive_both(&mut model, side, file, &mut random, &context),
            36 => {
                let on = random.below(2) == 0;
                of(file).show_ids(on);
                model.to[side].shows_ids = on;
            }
            37 if random.below(8) == 0 => {
                let (reads, writes) = (random.below(2) == 0, random.below(2) == 0);
                assert_eq!(of(file).shutdown(reads, writes), Ok(()));
                model.shutdown(side, reads, writes);
            }
            38 if random.below(16) == 0 => {
                model.close(side);
                files[side] = None;
            }
            _ => {
                let readable = events(file).intersects(PollMask::READ);
                assert_eq!(readable, model.readable(side), "{context}");
            }
        }
        model.to.iter_mut().for_each(forget_barriers);
    }
}

fn send_both(
    model: &mut Model,
    side: usize,
    file: &FileRef,
    other: &FileRef,
    random: &mut Random,
    context: &str,
) {
    let len = [0, 1, 2, 5, 30, 700][random.below(6)];
    let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
    let claimed = (random.below(4) == 0).then(|| random.below(3) as u32);
    let count = match random.below(5) {
        0 => 1 + random.below(3),
        _ => 0,
    };
    // What is not received must not fill the queue.
    if model.to[1 - side].sends.len() > 60 {
        return;
    }
    let ids = claimed.map(|uid| Ids {
        pid: 1,
        uid,
        gid: 0,
    });
    let rights = (count > 0).then(|| Rights::new(vec![other.clone(); count]));
    let message = Message {
        ids,
        rights: rights.transpose().expect("few are in flight"),
        ..Message::default()
    };
    let sent = send_with(file, &bytes, message);
    assert_eq!(sent, model.send(side, &bytes, claimed, count), "{context}");
}

fn receive_both(
    model: &mut Model,
    side: usize,
    file: &FileRef,
    random: &mut Random,
    context: &str,
) {
    let most = [1, 2, 3, 10, 2000][random.below(5)];
    let how = Receive {
        peek: random.below(5) == 0,
        ..Receive::default()
    };
    let got = receive_with(file, most, how);
    let got = got.map(|(bytes, got)| (bytes, got.whole, got.ids.map(|i| i.uid), got.files.len()));
    let expected = model.receive(side, most, how.peek);
    assert_eq!(got, expected, "{context}, {most} bytes, {how:?}");
}

#[test]
fn random_operations_have_the_results_of_the_model() {
    on(1, || {
        let rounds = std::env::var("PANTALA_CASES").ok();
        let rounds = rounds.and_then(|text| text.parse().ok()).unwrap_or(150);
        for seed in 1..=rounds {
            play(seed, 400);
        }
    });
}
