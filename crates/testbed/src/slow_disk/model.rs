//! How long a disk takes, decided in virtual time: no clock, no I/O. The FUSE server ([`super::server`]) and the simulator of
//! `io-sim` ask the same code.
//!
//! What the disk has accepted is served in the order in which it came. That is the worst that a disk may do, and what an ordinary one
//! does with a few requests; whoever wants another order has to hold requests back.

use floe_sched::Op;

/// How many bytes a hard disk reads or writes in a microsecond, once it is there: 120 MB/s.
const HARD_DISK_BYTES_PER_US: u64 = 120;
/// Shortest and longest time to get there, in microseconds: a seek and half a turn. With 16 KiB to transfer, random requests come to
/// 120 a second.
const POSITION_US: (u64, u64) = (4_100, 12_300);
/// A gap of so many bytes is passed over, rather than sought for.
const PASS_OVER_BYTES: u64 = 128 << 10;
/// The mean time of an SSD's request, in microseconds, spread evenly by half of that to both sides.
const SSD_US: u64 = 200;
/// The mean time of a small SSD's request, in microseconds, spread the same.
const SMALL_SSD_US: u64 = 1_000;
/// How many bytes are within that time; the others take theirs.
const SSD_FREE_BYTES: u64 = 16 << 10;
/// How many bytes each of an SSD's channels moves in a microsecond.
const SSD_BYTES_PER_US: u64 = 400;

/// A kind of disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One arm: 120 random requests a second, 120 MB/s in sequence, 25 ms for a flush.
    HardDisk,
    /// Four channels: 20,000 requests a second, 1 ms for a flush.
    Ssd,
    /// Four channels: 4,000 requests a second, 1 ms for a flush. Few enough that what serves them on two processors is not measured itself.
    SmallSsd,
}

impl Kind {
    /// Returns its name on the command line and in figures.
    pub fn name(self) -> &'static str {
        match self {
            Kind::HardDisk => "hard-disk",
            Kind::Ssd => "ssd",
            Kind::SmallSsd => "small-ssd",
        }
    }

    /// Returns the kind of this name.
    pub fn named(name: &str) -> Option<Kind> {
        [Kind::HardDisk, Kind::Ssd, Kind::SmallSsd]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// Returns how many random requests of 16 KiB it serves in a second.
    pub fn random_per_s(self) -> u64 {
        match self {
            Kind::HardDisk => 120,
            Kind::Ssd => 20_000,
            Kind::SmallSsd => 4_000,
        }
    }

    /// Returns how long a random request of so many bytes takes in the mean once it has begun, in microseconds.
    pub fn random_us(self, bytes: u64) -> f64 {
        let of_ssd =
            |mean_us: u64| mean_us + bytes.saturating_sub(SSD_FREE_BYTES) / SSD_BYTES_PER_US;
        match self {
            Kind::HardDisk => {
                (POSITION_US.0 + POSITION_US.1) as f64 / 2.0
                    + (bytes / HARD_DISK_BYTES_PER_US) as f64
            }
            Kind::Ssd => of_ssd(SSD_US) as f64,
            Kind::SmallSsd => of_ssd(SMALL_SSD_US) as f64,
        }
    }

    /// Returns how many requests it serves at once.
    pub fn channels(self) -> usize {
        match self {
            Kind::HardDisk => 1,
            Kind::Ssd | Kind::SmallSsd => 4,
        }
    }

    /// Returns how long a flush takes once it has begun, in microseconds.
    pub fn flush_us(self) -> u64 {
        match self {
            Kind::HardDisk => 25_000,
            Kind::Ssd | Kind::SmallSsd => 1_000,
        }
    }
}

/// A disk: until when each of its channels is busy, and where its arm is.
#[derive(Clone, Debug)]
pub struct Model {
    kind: Kind,
    free_us: Vec<u64>,
    head: u64,
    random: u64,
}

impl Model {
    /// Makes a disk with nothing to do. `seed` decides its turns of the platter, the same each time.
    pub fn new(kind: Kind, seed: u64) -> Model {
        Model {
            kind,
            free_us: vec![0; kind.channels()],
            head: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        least + (self.random >> 11) % (most - least).max(1)
    }

    /// Accepts a request that comes at `now_us`, for `bytes` bytes from `offset` on; returns when it is done. Calls must be in the
    /// order of `now_us`.
    pub fn accept(&mut self, now_us: u64, op: Op, offset: u64, bytes: u64) -> u64 {
        if op == Op::Flush {
            // all that was accepted has to be done before
            let busy = self.free_us.iter().copied().max().unwrap_or(0);
            let done = now_us.max(busy) + self.kind.flush_us();
            self.free_us.fill(done);
            return done;
        }
        let took = match self.kind {
            Kind::HardDisk => self.arm_us(offset) + bytes / HARD_DISK_BYTES_PER_US,
            Kind::Ssd | Kind::SmallSsd => {
                let more = bytes.saturating_sub(SSD_FREE_BYTES) / SSD_BYTES_PER_US;
                let mean_us = match self.kind {
                    Kind::SmallSsd => SMALL_SSD_US,
                    _ => SSD_US,
                };
                self.between(mean_us / 2, mean_us * 3 / 2) + more
            }
        };
        self.head = offset + bytes;
        let free = self.free_us.iter_mut().min();
        free.map_or(now_us, |free| {
            *free = now_us.max(*free) + took;
            *free
        })
    }

    /// Returns how long the arm takes to get there.
    fn arm_us(&mut self, offset: u64) -> u64 {
        match offset.checked_sub(self.head) {
            Some(gap) if gap <= PASS_OVER_BYTES => gap / HARD_DISK_BYTES_PER_US,
            _ => self.between(POSITION_US.0, POSITION_US.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests a second, with so many at once.
    fn rate(kind: Kind, at_once: usize, offset: impl Fn(u64) -> u64, bytes: u64) -> f64 {
        const REQUESTS: u64 = 20_000;
        let mut model = Model::new(kind, 7);
        let mut due = vec![0; at_once];
        for number in 0..REQUESTS {
            due.sort_unstable();
            due[0] = model.accept(due[0], Op::Read, offset(number), bytes);
        }
        let last = due.iter().max().expect("there are some");
        REQUESTS as f64 / *last as f64 * 1e6
    }

    fn scattered(number: u64) -> u64 {
        (number * 7_919 % 10_007) << 20
    }

    fn near(value: f64, wanted: f64) {
        assert!((value / wanted - 1.0).abs() < 0.03, "{value}, not {wanted}");
    }

    #[test]
    fn a_hard_disk_serves_120_requests_a_second_however_many_wait() {
        for at_once in [1, 4, 32] {
            near(rate(Kind::HardDisk, at_once, scattered, 16 << 10), 120.0);
        }
    }

    #[test]
    fn a_hard_disk_reads_in_sequence_at_120_mb_a_second() {
        let bytes = 1 << 20;
        let rate = rate(Kind::HardDisk, 1, |number| number * bytes, bytes);
        near(rate * bytes as f64, 120e6);
    }

    #[test]
    fn an_ssd_needs_four_requests_at_once_for_20_000_a_second() {
        near(rate(Kind::Ssd, 1, scattered, 16 << 10), 5_000.0);
        near(rate(Kind::Ssd, 4, scattered, 16 << 10), 20_000.0);
        near(rate(Kind::Ssd, 32, scattered, 16 << 10), 20_000.0);
    }

    #[test]
    fn each_kind_serves_as_many_as_it_says() {
        for kind in [Kind::HardDisk, Kind::Ssd, Kind::SmallSsd] {
            near(
                rate(kind, 16, scattered, 16 << 10),
                kind.random_per_s() as f64,
            );
            assert_eq!(Kind::named(kind.name()), Some(kind));
            for bytes in [16 << 10, 128 << 10] {
                let channels = kind.channels() as f64;
                near(
                    rate(kind, 16, scattered, bytes),
                    channels * 1e6 / kind.random_us(bytes),
                );
            }
        }
    }

    #[test]
    fn a_flush_waits_for_what_was_accepted_before_it_and_holds_up_what_comes_after() {
        let mut model = Model::new(Kind::Ssd, 1);
        let read = model.accept(0, Op::Read, 0, 4096);
        let flush = model.accept(10, Op::Flush, 0, 0);
        assert_eq!(flush, read + 1_000);
        assert!(model.accept(20, Op::Read, 0, 4096) > flush);
    }
}
