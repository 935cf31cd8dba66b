//! What goes wrong: a device that stalls, requests that nobody reports, machines that go.

use super::figures::vsip;
use super::programs::{Launcher, Reader};
use super::world::{Device, Program, World};
use floe_sched::{Class, Limit, MachineId, Op, Policy, Purpose, Vsip, VsipConfig, Who};

fn demand(machine: u32, class: Class) -> Who {
    Who {
        machine: MachineId(machine),
        purpose: Purpose::Demand,
        class,
    }
}

#[test]
fn after_a_stall_of_ten_seconds_all_is_as_before() {
    for device in [Device::HARD_DISK, Device::SSD] {
        let stalls = Device {
            stall_us: (100_000_000, 110_000_000),
            ..device
        };
        let mut programs: Vec<Box<dyn Program>> = vec![Box::new(Launcher::new(1, 60, 10.0, 0.5))];
        programs.extend((2..9).map(|machine| Box::new(Reader::new(machine)) as Box<dyn Program>));
        let mut world = World::new(vsip(), stalls, 16, programs);
        world.run(99.0);
        let status = |world: &World| world.policy.status(world.now_us).expect("status");
        let before = (status(&world), world.launch_s(0), world.requests(0..8));
        world.run(111.0);
        let at = world.requests(0..8);
        let launches = world.programs[0].launches().len();
        world.run(210.0);
        let after = status(&world);
        assert!((after.capacity_per_s / before.0.capacity_per_s - 1.0).abs() < 0.25);
        assert!(after.depth <= before.0.depth + 2);
        let served = world.requests(0..8) - at;
        assert!(
            (served / before.2 - 1.0).abs() < 0.02,
            "{served} {}",
            before.2
        );
        let later = &world.programs[0].launches()[launches + 1..];
        let mean = later.iter().sum::<f64>() / later.len() as f64 / 1e6;
        assert!((mean / before.1 - 1.0).abs() < 0.1, "{mean} {}", before.1);
    }
}

#[test]
fn a_request_whose_end_nobody_reports_keeps_its_place_for_two_minutes_only() {
    let mut vsip = Vsip::new(VsipConfig::disk(100, 4));
    for number in 0..20 {
        vsip.submit(0, demand(1, Class::Normal), Op::Read, 4096, number)
            .unwrap();
    }
    let taken = std::iter::from_fn(|| vsip.next(0, &mut |_, _| true)).count();
    assert!((1..20).contains(&taken));
    let again = vsip.wake_us().expect("a time to look again");
    assert_eq!(vsip.next(again - 1, &mut |_, _| true), None);
    assert!(vsip.next(again, &mut |_, _| true).is_some());
}

#[test]
fn a_report_of_what_nobody_asked_for_is_ignored() {
    let mut vsip = Vsip::new(VsipConfig::disk(100, 4));
    vsip.submit(5, demand(1, Class::Normal), Op::Read, 4096, 1)
        .unwrap();
    vsip.served(6, demand(2, Class::Bulk), Op::Flush, 7);
    vsip.served(6, demand(1, Class::Normal), Op::Read, 4096);
    // The clock of a confused caller goes backwards.
    assert!(vsip.next(2, &mut |_, _| true).is_some());
    let status = vsip.status(0).expect("status");
    assert_eq!((status.in_flight, status.machines.len()), (1, 1));
}

#[test]
fn nothing_is_kept_of_a_machine_that_has_gone() {
    let mut vsip = Vsip::new(VsipConfig::disk(100, 4));
    let who = demand(1, Class::Normal);
    vsip.limit(MachineId(1), Limit::DEFAULT);
    vsip.submit(0, who, Op::Read, 4096, 1).unwrap();
    vsip.gone(MachineId(1));
    assert!(
        vsip.next(1, &mut |_, _| true).is_some(),
        "what it has queued is served"
    );
    vsip.served(2, who, Op::Read, 4096);
    assert!(vsip.status(3).expect("status").machines.is_empty());
    // Machines that nobody reports to have gone are forgotten too, once there are many.
    for machine in 0..10_000 {
        let who = demand(machine, Class::Normal);
        vsip.submit(4, who, Op::Read, 4096, machine).unwrap();
        vsip.next(4, &mut |_, _| true).expect("served at once");
        vsip.served(4, who, Op::Read, 4096);
    }
    assert!(vsip.status(5).expect("status").machines.len() <= 1024);
}

#[test]
fn what_the_caller_does_itself_is_taken_whatever_waits_and_isnt_counted() {
    let mut vsip = Vsip::new(VsipConfig::disk(100, 2));
    for number in 0..3 {
        vsip.submit(0, demand(1, Class::Normal), Op::Read, 4096, number)
            .unwrap();
    }
    while vsip.next(0, &mut |_, _| true).is_some() {}
    let busy = vsip.status(0).expect("status").in_flight;
    let left = vsip.len();
    assert!(left > 0, "the device has all that it may have");
    assert!(vsip.withdraw(0, &mut |_, _| false).is_none());
    assert!(vsip.withdraw(0, &mut |_, number| *number == 2).is_some());
    assert_eq!(vsip.len(), left - 1);
    assert_eq!(vsip.status(0).expect("status").in_flight, busy);
}

#[test]
fn a_flood_of_writes_and_flushes_leaves_room_for_reads_that_somebody_waits_for() {
    // An SSD's depth is found first.
    let programs = (2..9).map(|machine| Box::new(Reader::new(machine)) as Box<dyn Program>);
    let mut world = World::new(vsip(), Device::SSD, 16, programs.collect());
    world.run(5.0);
    let mut vsip = Vsip::new(VsipConfig::disk(1000, 16));
    let store = Who {
        purpose: Purpose::Store,
        ..demand(2, Class::Normal)
    };
    let reads = demand(1, Class::Interactive);
    vsip.submit(0, reads, Op::Read, 4096, 0).unwrap();
    for number in 1..100 {
        vsip.submit(
            0,
            store,
            [Op::Write, Op::Flush][number % 2],
            64 << 10,
            number,
        )
        .unwrap();
    }
    let taken = std::iter::from_fn(|| vsip.next(0, &mut |_, _| true));
    let taken: Vec<_> = taken.map(|(who, _)| who).collect();
    assert_eq!(taken[0], reads);
    assert!(taken.len() <= 2, "one write at most beside it: {taken:?}");
}
