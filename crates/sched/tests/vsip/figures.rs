//! Launch times, throughput, fairness, and what a liar gains, on a hard disk and on an SSD.

use super::programs::{Boot, Launcher, Reader};
use super::world::{Device, Program, World};
use floe_sched::{Class, Fifo, Limit, MachineId, Policy, Vsip, VsipConfig};

/// How many threads serve requests.
const WORKERS: usize = 16;

/// The device, and how long programs think on machines that have one like it.
const DEVICES: [(&str, Device, f64); 2] = [
    ("hard disk", Device::HARD_DISK, 1.0),
    ("ssd", Device::SSD, 0.15),
];

pub fn vsip<T: Send + 'static>() -> Box<dyn Policy<T>> {
    Box::new(Vsip::new(VsipConfig::disk(4096, WORKERS)))
}

fn world(device: Device, programs: Vec<Box<dyn Program>>) -> World {
    World::new(vsip(), device, WORKERS, programs)
}

fn readers(machines: std::ops::Range<u32>) -> Vec<Box<dyn Program>> {
    let reader = |machine| Box::new(Reader::new(machine)) as Box<dyn Program>;
    machines.map(reader).collect()
}

fn boots(machines: std::ops::Range<u32>, thinks: f64) -> Vec<Box<dyn Program>> {
    let boot = |machine| Box::new(Boot { machine, thinks }) as Box<dyn Program>;
    machines.map(boot).collect()
}

/// Returns the launch time beside this noise, against that alone. Where programs think less everything is quicker, so that the run
/// is shorter.
fn slowdown(device: Device, thinks: f64, noise: Vec<Box<dyn Program>>) -> f64 {
    let launcher = || Box::new(Launcher::new(1, 60, 20.0 * thinks, thinks));
    let seconds = 600.0 * thinks;
    let mut alone = world(device, vec![launcher()]);
    alone.run(seconds);
    let mut programs: Vec<Box<dyn Program>> = vec![launcher()];
    programs.extend(noise);
    let mut beside = world(device, programs);
    beside.run(seconds);
    beside.launch_s(0) / alone.launch_s(0)
}

#[test]
fn a_launch_beside_readers_takes_hardly_longer_than_alone() {
    for (name, device, thinks) in DEVICES {
        let one = slowdown(device, thinks, readers(2..3));
        let seven = slowdown(device, thinks, readers(2..9));
        let slow: Vec<Box<dyn Program>> = vec![Box::new(Reader {
            threads: 1,
            thinks_us: 300.0,
            ..Reader::new(2)
        })];
        let slow = slowdown(device, thinks, slow);
        println!(
            "{name}: launch_reader1 {one:.3}, launch_reader7 {seven:.3}, one at a time {slow:.3}"
        );
        assert!(one <= 1.10 && seven <= 1.15, "{name}: {one} {seven}");
        assert!(slow <= 1.10, "{name}: {slow}");
    }
}

#[test]
fn a_launch_beside_machines_that_boot_takes_hardly_longer_than_alone() {
    for (name, device, thinks) in DEVICES {
        let one = slowdown(device, thinks, boots(2..3, thinks));
        let seven = slowdown(device, thinks, boots(2..9, thinks));
        println!("{name}: launch_boot1 {one:.3}, launch_boot7 {seven:.3}");
        assert!(one <= 1.15 && seven <= 1.25, "{name}: {one} {seven}");
    }
}

#[test]
fn first_come_first_served_would_make_a_launch_take_several_times_as_long() {
    let launcher = || Box::new(Launcher::new(1, 60, 20.0, 1.0)) as Box<dyn Program>;
    let mut times = Vec::new();
    for policy in [vsip(), Box::new(Fifo::new(4096))] {
        let mut programs = vec![launcher()];
        programs.extend(readers(2..9));
        let mut world = World::new(policy, Device::HARD_DISK, WORKERS, programs);
        world.run(600.0);
        times.push(world.launch_s(0));
    }
    println!("hard disk: fifo {:.2} s, vsip {:.2} s", times[1], times[0]);
    assert!(times[1] > 5.0 * times[0], "{times:?}");
}

#[test]
fn the_others_lose_nearly_nothing_and_have_equal_parts() {
    for (name, device, thinks) in DEVICES {
        let seconds = 600.0 * thinks;
        let mut without = world(device, readers(2..9));
        without.run(seconds);
        let mut programs: Vec<Box<dyn Program>> =
            vec![Box::new(Launcher::new(1, 60, 60.0 * thinks, thinks))];
        programs.extend(readers(2..9));
        let mut with = world(device, programs);
        with.run(seconds);
        let ratio = with.requests(1..8) / without.requests(0..7);
        let parts = || with.got[1..].iter().map(|got| got.requests as f64);
        let jain =
            parts().sum::<f64>().powi(2) / (7.0 * parts().map(|part| part * part).sum::<f64>());
        let rate = without.requests(0..7) / seconds;
        println!(
            "{name}: throughput_ratio {ratio:.4}, jain {jain:.5}, {rate:.0} requests/s without"
        );
        assert!(ratio >= 0.98 && jain >= 0.98, "{name}: {ratio} {jain}");
        let full = device.channels as f64 / device.service_us * 1e6;
        assert!(rate >= 0.98 * full, "{name}: {rate} of {full}");
    }
}

#[test]
fn a_hard_disk_gets_one_or_two_requests_at_once_and_an_ssd_what_it_can_do() {
    for ((name, device, _), depths) in DEVICES.iter().zip([1..=2, 4..=6]) {
        let mut world = world(*device, readers(1..9));
        let mut seen = Vec::new();
        for second in 10..110 {
            world.run(f64::from(second));
            let status = world.policy.status(world.now_us).expect("status");
            seen.push(status.depth);
        }
        seen.sort_unstable();
        println!("{name}: depth {} {} {}", seen[2], seen[50], seen[97]);
        assert!(
            depths.contains(&seen[50]) && depths.contains(&seen[90]),
            "{name}"
        );
    }
}

#[test]
fn a_liar_gains_nothing() {
    for (name, device, thinks) in DEVICES {
        for threads in [1, 4, 32] {
            // Longer than the credit that all have at first lasts.
            let seconds = 90.0 + 30.0 * thinks;
            let run = |class| {
                let mut programs = readers(2..9);
                programs.push(Box::new(Reader {
                    class,
                    threads,
                    ..Reader::new(1)
                }));
                let mut world = world(device, programs);
                world.run(seconds);
                (world.requests(7..8), world.wait_us(7), world.requests(0..7))
            };
            let (honest, lies) = (run(Class::Normal), run(Class::Interactive));
            let (requests, wait, others) =
                (lies.0 / honest.0, honest.1 / lies.1, lies.2 / honest.2);
            println!(
                "{name}, {threads} at once: liar_gain {requests:.4} in throughput, {wait:.4} in latency; others {others:.4}"
            );
            assert!(
                requests <= 1.02 && wait <= 1.02,
                "{name} {threads}: {requests} {wait}"
            );
            assert!(others >= 0.98, "{name} {threads}: {others}");
        }
    }
}

#[test]
fn a_launch_beside_a_liar_is_as_quick_as_beside_a_reader() {
    for (name, device, thinks) in DEVICES {
        let mut noise = readers(3..9);
        noise.push(Box::new(Reader {
            class: Class::Interactive,
            threads: 16,
            ..Reader::new(2)
        }));
        let beside = slowdown(device, thinks, noise);
        println!("{name}: launch beside a liar and six readers {beside:.3}");
        assert!(beside <= 1.2, "{name}: {beside}");
    }
}

#[test]
fn machines_that_have_a_weight_and_a_cap_together_get_no_more_than_one_would() {
    for (name, device, thinks) in DEVICES {
        for (cap_percent, wanted) in [(100, 0.5), (20, 0.2)] {
            // eight of them beside one that is alone and always has something queued: what nobody wants is for whoever asks
            let mut programs = readers(1..9);
            programs.push(Box::new(Reader {
                threads: 16,
                ..Reader::new(9)
            }));
            let mut shared = world(device, programs);
            for machine in 1..9 {
                let limit = Limit {
                    weight: 5,
                    cap_percent,
                    among: 8,
                };
                shared.policy.limit(MachineId(machine), limit);
            }
            shared.run(50.0 * thinks);
            let before: Vec<u64> = shared.got.iter().map(|got| got.requests).collect();
            shared.run(200.0 * thinks);
            let part = |machine: usize| (shared.got[machine].requests - before[machine]) as f64;
            let all: f64 = (0..9).map(part).sum();
            let theirs = 1.0 - part(8) / all;
            println!("{name}: eight with a cap of {cap_percent} % have {theirs:.3}");
            assert!((theirs / wanted - 1.0).abs() < 0.05, "{name}: {theirs}");
        }
    }
}

#[test]
fn weights_divide_what_there_is_and_caps_hold_while_others_want_something() {
    for (name, device, _) in DEVICES {
        let mut shared = world(device, readers(1..4));
        let limit = |weight, cap_percent| Limit {
            weight,
            cap_percent,
            among: 1,
        };
        shared.policy.limit(MachineId(1), limit(10, 100));
        shared.policy.limit(MachineId(2), limit(5, 100));
        shared.policy.limit(MachineId(3), limit(5, 10));
        shared.run(50.0);
        let before: Vec<u64> = shared.got.iter().map(|got| got.requests).collect();
        shared.run(100.0);
        let part = |machine: usize| (shared.got[machine].requests - before[machine]) as f64;
        let all = part(0) + part(1) + part(2);
        let parts = [part(0) / all, part(1) / all, part(2) / all];
        println!("{name}: weights 10, 5, 5 with a cap of 10 %: {parts:.3?}");
        for (part, wanted) in parts.iter().zip([0.6, 0.3, 0.1]) {
            assert!((part / wanted - 1.0).abs() < 0.1, "{name}: {parts:?}");
        }
        // Alone, it may have all.
        let busy = Box::new(Reader {
            threads: 16,
            ..Reader::new(1)
        });
        let mut alone = world(device, vec![busy]);
        alone.policy.limit(MachineId(1), limit(5, 10));
        alone.run(20.0);
        let full = device.channels as f64 / device.service_us * 1e6;
        assert!(alone.requests(0..1) > 0.95 * full * 20.0, "{name}");
    }
}

#[test]
fn without_a_mark_a_launch_waits_for_its_turn() {
    let run = |marked: bool| {
        let launcher = Launcher::new(1, 60, 20.0, 1.0);
        let launcher = match marked {
            true => launcher,
            false => launcher.unmarked(),
        };
        let mut programs: Vec<Box<dyn Program>> = vec![Box::new(launcher)];
        programs.extend(readers(2..9));
        let mut world = world(Device::HARD_DISK, programs);
        world.run(600.0);
        world.launch_s(0)
    };
    let (marked, unmarked) = (run(true), run(false));
    println!("hard disk: launch marked {marked:.2} s, unmarked {unmarked:.2} s");
    assert!(unmarked > 1.3 * marked);
}
