//! Random numbers: one ChaCha8 generator for each CPU, seeded at boot.
//!
//! Guarantee: earlier and later output cannot be computed from output without knowing a generator's state. Each CPU has a
//! generator of its own, so CPUs share no cache line. A generator replaces its key with its own output once it has made
//! `REKEY` bytes since the last replacement (fast key erasure), so its memory, read later, gives away less than the last
//! `REKEY` bytes of output. The seed is mixed from the CPU's hardware generator, if there is one, the time-stamp counter and
//! the clock; without a hardware generator the numbers are no less predictable than the timing of the boot.

use ksync::{Once, PerCpu, Spin};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

ksync::lock_class!(pub RandomLock, "random generator", rank = 88);

/// Bytes that a generator makes before it replaces its key.
const REKEY: usize = 1024;
/// The most bytes that [`fill`] makes in one hold of the lock, with preemption off.
pub const PIECE: usize = 256;

struct Cpu {
    rng: ChaCha8Rng,
    since: usize,
}

impl Cpu {
    fn fill(&mut self, out: &mut [u8]) {
        self.rng.fill_bytes(out);
        self.since += out.len();
        if self.since >= REKEY {
            let mut seed = [0; 32];
            self.rng.fill_bytes(&mut seed);
            self.rng = ChaCha8Rng::from_seed(seed);
            self.since = 0;
        }
    }
}

hal::machine_static! {
    static CPUS: Once<PerCpu<Spin<Cpu, RandomLock>>> = Once::new();
}

fn stir(word: &mut u64, with: u64) {
    *word = (*word ^ with)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        ^ with >> 17;
}

/// Seeds the generators of `ncpus` CPUs. Called once, at boot.
pub fn init(ncpus: usize) {
    let mut pool = [0u64; 4];
    for round in 0..64u64 {
        for word in &mut pool {
            stir(word, hal::time::ticks().wrapping_add(round));
            stir(word, hal::cpu::hardware_random().unwrap_or(0));
        }
    }
    stir(&mut pool[0], hal::time::boot_realtime_ns());
    let mut seed = [0; 32];
    for (to, from) in seed.chunks_exact_mut(8).zip(pool) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    let mut root = ChaCha8Rng::from_seed(seed);
    let _ = CPUS.set(PerCpu::new(ncpus, |_| {
        let mut seed = [0; 32];
        root.fill_bytes(&mut seed);
        Spin::new(Cpu {
            rng: ChaCha8Rng::from_seed(seed),
            since: 0,
        })
    }));
}

/// Fills `out` with random bytes. Before [`init`] the bytes are readings of the time-stamp counter, and predictable. Takes
/// the lock of this CPU's generator, for at most [`PIECE`] bytes at a time.
pub fn fill(out: &mut [u8]) {
    for piece in out.chunks_mut(PIECE) {
        match CPUS.get() {
            Some(cpus) => {
                let pin = ksync::pin();
                cpus.get(&pin).lock().fill(piece);
            }
            None => {
                for b in piece {
                    *b = hal::time::ticks() as u8;
                }
            }
        }
    }
}
