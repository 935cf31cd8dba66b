//! Machines that share one disk, in virtual time: the same requests as those of `io`, the same model of the disk
//! ([`floe_testbed::slow_disk::Model`]), and a policy between them, which is floe's own code or a peer's rules (`mclock`, `cost`, and the paper's own `limiter`).
//! Nothing here depends on how fast this host is.

mod cost;
mod limiter;
mod mclock;
mod programs;
mod world;

pub use cost::IoCost;
pub use limiter::Limiter;
pub use mclock::{MClock, Share};
pub use programs::{Boot, Launcher, Reader};
pub use world::{Program, Request, Wish, World};

#[cfg(test)]
mod tests {
    use super::*;
    use floe_sched::{Fifo, Policy, Vsip, VsipConfig};
    use floe_testbed::launch::{Launch, Script, made_up};
    use floe_testbed::slow_disk::Kind;

    fn launch_s(policy: Box<dyn Policy<Request>>, workers: usize, readers: u32) -> f64 {
        let launch = Launch::of(&made_up(0));
        let mut programs: Vec<Box<dyn Program + '_>> =
            vec![Box::new(Launcher::new(0, 10.0, &launch))];
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

    #[test]
    fn a_replayed_launch_takes_what_its_requests_and_its_computing_take() {
        let text = "launch a\nslowdown 1\ninput\n1000 read 0 16384 a\n+ read 16384 16384 a\n+ read 32768 16384 a\n4000 read 49152 16384 a\n";
        let launch = Launch::of(&Script::parse(text).unwrap());
        let programs: Vec<Box<dyn Program + '_>> = vec![Box::new(Launcher::new(0, 5.0, &launch))];
        let mut world = World::new(Box::new(Fifo::new(1024)), Kind::HardDisk, 8, programs);
        world.run(60.0);
        // one seek for the first, then in sequence at 120 bytes a microsecond
        let least_s = (1_000.0 + 4_100.0 + 4_000.0 + 65_536.0 / 120.0) / 1e6;
        let took_s = world.launch_s(0);
        assert!((least_s..least_s + 0.0083).contains(&took_s), "{took_s}");
        assert!(world.served[0] >= 4 * 9);
    }

    #[test]
    fn a_recorded_boot_goes_on_without_end_and_without_an_input() {
        let text = "launch boot\nslowdown 1\ninput\n0 read 0 16384 init\n500 read 1048576 16384 init\n0 write 4096 4096 jbd2\n0 flush 0 0 jbd2\n";
        let boot = Launch::of(&Script::parse(text).unwrap());
        let launch = Launch::of(&made_up(0));
        let programs: Vec<Box<dyn Program + '_>> = vec![
            Box::new(Launcher::new(0, 5.0, &launch)),
            Box::new(Launcher::boots(1, &boot)),
        ];
        let vsip: Box<dyn Policy<Request>> = Box::new(Vsip::new(VsipConfig::disk(1024, 8)));
        let mut world = World::new(vsip, Kind::HardDisk, 8, programs);
        world.run(60.0);
        assert!(world.launch_s(0) > 0.0);
        // many boots, of four requests each, the last of which is a flush of 25 ms
        assert!(world.served[1] > 4 * 100, "{:?}", world.served);
    }

    #[test]
    fn the_papers_limiter_helps_a_launch_less_than_credit_does() {
        let alone = launch_s(Box::new(Limiter::new()), 1, 0);
        let limited = launch_s(Box::new(Limiter::new()), 1, 7) / alone;
        let credit = launch_s(Box::new(Vsip::new(VsipConfig::disk(1024, 8))), 8, 7) / alone;
        assert!(limited > 1.5 * credit, "{limited} {credit}");
        assert!(launch_s(Box::new(Fifo::new(1024)), 128, 7) / alone > limited);
    }

    #[test]
    fn io_cost_gives_a_launch_its_part_and_no_more() {
        let alone = launch_s(Box::new(IoCost::new(Kind::HardDisk)), 8, 0);
        let beside = launch_s(Box::new(IoCost::new(Kind::HardDisk)), 8, 7);
        assert!(beside > 2.0 * alone, "{beside} {alone}");
        assert!(launch_s(Box::new(Fifo::new(1024)), 128, 7) > beside);
    }
}
