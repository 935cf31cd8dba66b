//! Machines that lie about who waits for what: by clicking, by a program's name, by their agent.

use super::figures::vsip;
use super::programs::Reader;
use super::world::{Device, Dice, Program, Wish, World};
use floe_sched::classify::{Classifier, List, Name, Owned, Place, Scope, Seen, Told};
use floe_sched::{Class, MachineId, Op, Purpose, Who, classify};
use std::cell::Cell;
use std::rc::Rc;

const MACHINE: MachineId = MachineId(1);

/// How a machine lies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// Not at all.
    None,
    /// Somebody clicks without end.
    Click,
    /// Its programs have the name of one that is allowed by hand.
    Rename,
    /// Its agent says that one that is allowed by hand reads everything.
    Agent,
}

/// Reads as fast as it can, and the classification says for whom.
struct Liar {
    lie: Lie,
    threads: usize,
    classifier: Classifier,
    reads: u64,
    /// How many of its reads were taken for somebody's who waits, and how many there were.
    believed: Rc<Cell<(u64, u64)>>,
}

impl Liar {
    fn new(lie: Lie, threads: usize, believed: Rc<Cell<(u64, u64)>>) -> Liar {
        let of = Owned::default();
        let mut classifier = Classifier::new();
        classifier.import(of, List::default());
        let allowed = classifier.allow(Scope::Disk(of), name("mplayer"));
        allowed.expect("there is room");
        classifier.began(0, MACHINE, of);
        Liar {
            lie,
            threads,
            classifier,
            reads: 0,
            believed,
        }
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

impl Program for Liar {
    fn threads(&self) -> usize {
        self.threads
    }

    fn wish(&mut self, _: usize, now_us: u64, dice: &mut Dice) -> Wish {
        self.reads += 1;
        let program = classify::Program::Task(name(match self.lie {
            Lie::Rename => "mplayer",
            _ => "backup",
        }));
        // far from all others
        let offset = (self.reads * 7919 % 100_000) << 20;
        let seen = Seen {
            machine: MACHINE,
            // whoever has an agent is named by that alone
            program: Some(&program).filter(|_| self.lie != Lie::Agent && self.lie != Lie::Click),
            folder: None,
            place: Some(Place { region: 0, offset }),
            bytes: 16 << 10,
            op: Op::Read,
        };
        match self.lie {
            Lie::Click => self.classifier.input(now_us, MACHINE),
            Lie::Agent => {
                let told = Told {
                    name: name("mplayer"),
                    from: Some(offset),
                    bytes: seen.bytes,
                };
                self.classifier.told(now_us, MACHINE, &[told]);
            }
            Lie::None | Lie::Rename => {}
        }
        let class = self.classifier.request(now_us, &seen);
        let (believed, all) = self.believed.get();
        let is_believed = u64::from(class == Class::Interactive);
        self.believed.set((believed + is_believed, all + 1));
        Wish {
            after_us: dice.between(25.0, 100.0),
            who: Who {
                machine: MACHINE,
                purpose: Purpose::Demand,
                class,
            },
            op: Op::Read,
            bytes: seen.bytes,
        }
    }
}

#[test]
fn clicks_a_players_name_and_an_agents_word_are_believed_and_gain_nothing() {
    for threads in [1, 8] {
        let run = |lie| {
            let believed = Rc::new(Cell::new((0, 0)));
            let liar = Liar::new(lie, threads, believed.clone());
            let mut programs: Vec<Box<dyn Program>> = vec![Box::new(liar)];
            let readers = 2..9;
            programs
                .extend(readers.map(|machine| Box::new(Reader::new(machine)) as Box<dyn Program>));
            let mut world = World::new(vsip(), Device::HARD_DISK, 16, programs);
            // longer than the credit that all have at first lasts
            world.run(150.0);
            let (interactive, all) = believed.get();
            let share = interactive as f64 / all as f64;
            (
                world.requests(0..1),
                world.wait_us(0),
                world.requests(1..8),
                share,
            )
        };
        let honest = run(Lie::None);
        assert!(honest.3 < 0.1, "taken for interactive: {}", honest.3);
        for lie in [Lie::Click, Lie::Rename, Lie::Agent] {
            let lies = run(lie);
            let more = lies.0 / honest.0;
            let sooner = honest.1 / lies.1;
            let others = lies.2 / honest.2;
            println!(
                "{lie:?}, {threads} at once: liar_gain {more:.4} in throughput, {sooner:.4} in latency; others {others:.4}"
            );
            // else nothing is shown
            assert!(lies.3 > 0.9, "{lie:?}: believed in {}", lies.3);
            assert!(more <= 1.02 && sooner <= 1.02, "{lie:?}: {more} {sooner}");
            assert!(others >= 0.98, "{lie:?}: {others}");
        }
    }
}
