//! What a run may be expected to take: the paper's section 3, equations 2 to 15.
//!
//! - [`Curve`] is M, the bytes that a machine with everything in memory has accessed by a time.
//! - [`Curve::playback`] gives P for an effective download rate r, when pieces are fetched as they are needed ([`Fetch::Demand`],
//!   equations 2 to 4) or ahead in the order of use ([`Fetch::InOrder`], equations 5 to 7).
//! - [`Setting`] gives r for one server (equations 8 and 9) and for a swarm with a seed (10 to 12), with the waits of
//!   equations 14 and 15.
//!
//! M changes only where the machine accesses something, so that P is computed from access to access, without steps of time: within
//! the model it is exact.
//!
//! # Differences to the text
//!
//! Equation 9 of the paper divides by `n (W + S)`, which adds seconds to bytes. What follows from equation 8 is `n (W r_net / n + S)`,
//! and so it stands in equation 12; it is used here. Equation 10 has the time of the transfer inside of W, as if it were diversity; 11
//! has it beside, as here. The links of 4.3.1 are of 100 Mbit/s and 1 Gbit/s, not the other way round. W of demand in a swarm (4.4.1) grows with n, and that of one host has no swarm
//! at all (footnote 6).

/// How pieces are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// Each when it is needed.
    Demand,
    /// Ahead, in the order of use, and each is used.
    InOrder,
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// One server, its uplink shared evenly by all.
    Central,
    /// All hosts, and a seed.
    Swarm,
}

/// M: bytes accessed over the time of a machine with everything in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Seconds and bytes by then; both ascend.
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Makes one of accesses (seconds, bytes of this access) in any order, and the end of the run in seconds.
    pub fn new(accesses: impl IntoIterator<Item = (f64, f64)>, end_s: f64) -> Curve {
        let mut accesses: Vec<(f64, f64)> = accesses
            .into_iter()
            .filter(|(at_s, bytes)| at_s.is_finite() && bytes.is_finite() && *bytes > 0.0)
            .map(|(at_s, bytes)| (at_s.max(0.0), bytes))
            .collect();
        accesses.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut points = vec![(0.0, 0.0)];
        let mut sum = 0.0;
        for (at_s, bytes) in accesses {
            sum += bytes;
            points.push((at_s, sum));
        }
        let last_s = points.last().map_or(0.0, |point| point.0);
        points.push((end_s.max(last_s), sum));
        Curve { points }
    }

    /// Returns A, all bytes that are accessed.
    pub fn bytes(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.1)
    }

    /// Returns how long the machine takes with everything in memory, in seconds.
    pub fn end_s(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.0)
    }

    /// Returns M as points of seconds and bytes.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Returns P as points of seconds and bytes, for an effective download rate in bytes a second. Its last point is the end of the
    /// run; there is none at a rate of zero.
    pub fn playback(&self, rate: f64, fetch: Fetch) -> Vec<(f64, f64)> {
        let mut at_s = 0.0;
        // B, bytes that are here and not used yet, and all that was received
        let (mut buffer, mut received) = (0.0, 0.0);
        let mut points = vec![(0.0, 0.0)];
        for pair in self.points.windows(2) {
            let [(from_s, from), (to_s, to)] = [pair[0], pair[1]];
            let (own_s, bytes) = (to_s - from_s, to - from);
            at_s += match fetch {
                // equation 4: the slower of machine and link
                Fetch::Demand => own_s.max(bytes / rate),
                // equations 5 to 7: the link fills the buffer meanwhile, and what then lacks is waited for
                Fetch::InOrder => {
                    let more = (rate * own_s).min(self.bytes() - received);
                    let lack = (bytes - buffer - more).max(0.0);
                    received += more + lack;
                    buffer += more + lack - bytes;
                    own_s + lack / rate
                }
            };
            points.push((at_s, to));
        }
        points
    }

    /// Returns how long a run takes over how long it takes with everything in memory: P^-1(A) / M^-1(A).
    pub fn slowdown(&self, rate: f64, fetch: Fetch) -> f64 {
        let end_s = self
            .playback(rate, fetch)
            .last()
            .map_or(0.0, |point| point.0);
        end_s / self.end_s().max(f64::MIN_POSITIVE)
    }
}

/// What the rate of a run depends on besides the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Bytes a second of each host's link.
    pub link: f64,
    /// Bytes of a piece (S).
    pub piece: f64,
    /// Round trip, in seconds.
    pub rtt_s: f64,
    /// What a host needs to answer (Q), in seconds.
    pub service_s: f64,
}

impl Setting {
    /// Equation 14, which 4.4.1 takes for all n: the wait at a server, in seconds.
    pub fn server_wait_s(&self) -> f64 {
        self.rtt_s + self.service_s
    }

    /// Equation 15 and the one before it: the wait in a swarm of n hosts, in seconds. The fewer hosts have a
    /// piece, the longer an answer takes: it grows with n if hosts fetch only what they need at the moment, because all then have the same
    /// pieces, and with the square root of n if they fetch ahead.
    pub fn swarm_wait_s(&self, hosts: usize, fetch: Fetch) -> f64 {
        let n = hosts as f64;
        match fetch {
            Fetch::Demand => self.rtt_s + self.service_s * n,
            Fetch::InOrder => self.rtt_s + self.service_s * n.sqrt(),
        }
    }

    /// Returns r, the effective download rate of each of n hosts in bytes a second.
    pub fn rate(&self, hosts: usize, distribution: Distribution, fetch: Fetch) -> f64 {
        let n = hosts.max(1) as f64;
        // equations 8 and 9, and the same as the second term of 12
        let server =
            self.link * self.piece / (n * (self.link / n * self.server_wait_s() + self.piece));
        match distribution {
            Distribution::Central => server,
            // footnote 6: one host has no peers
            Distribution::Swarm if hosts < 2 => server,
            // equations 10 to 12; no downlink carries more than its own
            Distribution::Swarm => {
                let wait_s = self.swarm_wait_s(hosts, fetch);
                let swarm = self.link * self.piece / (self.link * wait_s + self.piece);
                (swarm + server).min(self.link)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A burst of 10 MB in the first second, then 1 MB a second for 9 seconds.
    fn burst() -> Curve {
        let first = (1..=100).map(|n| (f64::from(n) / 100.0, 1e5));
        let then = (1..=90).map(|n| (1.0 + f64::from(n) / 10.0, 1e5));
        Curve::new(first.chain(then), 10.0)
    }

    fn near(one: f64, other: f64) {
        assert!(
            (one - other).abs() < 1e-6 * other.abs().max(1.0),
            "{one} is not {other}"
        );
    }

    #[test]
    fn a_link_faster_than_the_machine_costs_nothing() {
        near(burst().slowdown(20e6, Fetch::Demand), 1.0);
        near(burst().slowdown(20e6, Fetch::InOrder), 1.0);
    }

    #[test]
    fn demand_loses_what_a_buffer_would_have_held() {
        // at 2 MB/s the burst takes 5 s, and then the machine is the slower one
        near(burst().slowdown(2e6, Fetch::Demand), 1.4);
        near(burst().slowdown(2e6, Fetch::InOrder), 1.4);
        // the other way round, what the link brings in the quiet time serves the burst
        let late = Curve::new([(9.0, 1e6), (10.0, 18e6)], 10.0);
        near(late.slowdown(2e6, Fetch::InOrder), 1.0);
        near(late.slowdown(2e6, Fetch::Demand), 1.8);
    }

    #[test]
    fn nothing_is_fetched_ahead_that_is_not_there() {
        // all bytes are here after a second; the buffer does not grow on
        let curve = Curve::new([(0.5, 1e6), (9.0, 1e6)], 10.0);
        let points = curve.playback(2e6, Fetch::InOrder);
        near(points.last().unwrap().0, 10.0);
        near(points.last().unwrap().1, 2e6);
    }

    #[test]
    fn the_rates_are_those_of_the_paper() {
        let paper = Setting {
            link: 12.5e6,
            piece: 16384.0,
            rtt_s: 5e-4,
            service_s: 5e-4,
        };
        // equation 13: one host, whoever sends
        let one = 12.5e6 * 16384.0 / (12.5e6 * 1e-3 + 16384.0);
        near(paper.rate(1, Distribution::Central, Fetch::Demand), one);
        near(paper.rate(1, Distribution::Swarm, Fetch::InOrder), one);
        // a server's link is what its hosts share
        let hundred = paper.rate(100, Distribution::Central, Fetch::Demand);
        assert!(
            (0.99..1.0).contains(&(hundred * 100.0 / 12.5e6)),
            "{hundred}"
        );
        // equation 15 with n = 100: W = 5.5 ms
        near(paper.swarm_wait_s(100, Fetch::InOrder), 5.5e-3);
        let swarm = |fetch| paper.rate(100, Distribution::Swarm, fetch);
        assert!(swarm(Fetch::InOrder) > 5.0 * swarm(Fetch::Demand));
        assert!(swarm(Fetch::Demand) > 2.0 * hundred);
    }

    #[test]
    fn a_curve_of_nothing_is_no_trouble() {
        let curve = Curve::new([(f64::NAN, 1.0), (1.0, -5.0)], 0.0);
        assert_eq!((curve.bytes(), curve.end_s()), (0.0, 0.0));
        assert!(curve.slowdown(1.0, Fetch::InOrder).is_finite());
    }
}
