use super::figures::vsip;
use super::programs::*;
use super::world::*;
use floe_sched::Class;
#[test]
fn look() {
    for (threads, others) in [(2, 8u32)] {
        for honest in [true, false] {
            let phases = vec![(100000, Class::Interactive, 524288, 100.0)];
            let mut programs: Vec<Box<dyn Program>> = vec![Box::new(Adversary {
                machine: 1,
                threads,
                phases,
                honest,
            })];
            programs.extend(
                (2..2 + others).map(|machine| Box::new(Reader::new(machine)) as Box<dyn Program>),
            );
            let mut world = World::new(vsip(), Device::HARD_DISK, 16, programs);
            for s in [
                0.5, 1.0, 2.0, 4.0, 10.0, 20.0, 40.0, 60.0, 80.0, 120.0, 160.0, 200.0, 400.0,
            ] {
                world.run(s);
                let st = world.policy.status(world.now_us).unwrap();
                println!(
                    "{threads} {honest} {s}: {:?} sum {} depth {} cap {:.1} held {} idle {} guard {} ahead {:?}",
                    world.got.iter().map(|g| g.requests).collect::<Vec<_>>(),
                    world.requests(0..9),
                    st.depth,
                    st.capacity_per_s,
                    st.held_us / 1000,
                    world.idle_us / 1000,
                    st.guarded,
                    st.machines
                        .iter()
                        .map(|m| m.ahead as i64)
                        .collect::<Vec<_>>()
                );
            }
        }
    }
}
