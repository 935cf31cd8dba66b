//! Machines that share one disk, in virtual time: the same requests as those of `io`, the same model of the disk
//! ([`crate::slow_disk::Model`]), and a policy between them, which is floe's own code or a peer's rules (`mclock`). Nothing here depends on how
//! fast this host is.

mod mclock;
mod programs;
mod world;

pub use mclock::{MClock, Share};
pub use programs::{Boot, Launcher, Reader};
pub use world::{Program, Request, Wish, World};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow_disk::Kind;
    use floe_sched::{Fifo, Policy, Vsip, VsipConfig};

    fn launch_s(policy: Box<dyn Policy<Request>>, workers: usize, readers: u32) -> f64 {
        let mut programs: Vec<Box<dyn Program>> = vec![Box::new(Launcher::new(0, 10.0, 0))];
        programs.extend((1..=readers).map(|n| Box::new(Reader::new(n)) as Box<dyn Program>));
        let mut world = World::new(policy, Kind::HardDisk, workers, programs);
        world.run(120.0);
        world.launch_s(0)
    }

    #[test]
    fn first_come_first_served_a_launch_waits_for_all_and_vsip_does_not_let_it() {
        let vsip = || Box::new(Vsip::new(VsipConfig::disk(1024, 8)));
        let alone = launch_s(vsip(), 8, 0);
        assert!((0.5..1.5).contains(&alone), "{alone}");
        assert!(launch_s(vsip(), 8, 7) < 1.2 * alone);
        assert!(launch_s(Box::new(Fifo::new(1024)), 128, 7) > 8.0 * alone);
    }

    #[test]
    fn mclock_keeps_what_was_reserved() {
        let share = |machine: u32| match machine {
            0 => Share {
                reserved_per_s: 60.0,
                weight: 1.0,
            },
            _ => Share {
                reserved_per_s: 0.0,
                weight: 1.0,
            },
        };
        let alone = launch_s(Box::new(MClock::new(share)), 1, 0);
        let beside = launch_s(Box::new(MClock::new(share)), 1, 7);
        assert!((1.05..3.0).contains(&(beside / alone)), "{beside} {alone}");
    }
}
