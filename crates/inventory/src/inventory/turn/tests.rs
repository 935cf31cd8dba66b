//! Three nodes with one machine, whose words are lost and who are killed between any two of their steps.

use super::*;
use proptest::prelude::*;

const KEY: &str = "00112233445566aa";
const NODES: usize = 3;
/// How often each side is heard and asked until nothing is left to be done: more than the longest way through a hand-over.
const ROUNDS: usize = 16;

/// What a node has of the machine. All of it but `runs` is on its disk; a guest that runs goes on when its node is killed.
#[derive(Clone, Debug)]
struct Has {
    turn: Option<Turn>,
    runs: bool,
    /// The last write of the guest that is in what this node has.
    wrote: u64,
}

/// Where a step of a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Nowhere.
    None,
    /// The other side hears nothing.
    Word,
    /// The other side is killed once it has written down what it does.
    Work,
    /// Its answer is lost.
    Answer,
}

/// What happens next, to the node of this number.
#[derive(Clone, Copy, Debug)]
enum Step {
    Moves(usize, usize),
    Lends(usize, usize),
    /// The borrower tells its lender what it is.
    Syncs(usize),
    /// The lender ends its loan, and the borrower throws the machine away.
    Ends(usize, Cut),
    Says(usize, Cut),
    Asks(usize, Cut),
    Killed(usize),
    Back(usize),
    Forced(usize),
    Writes,
}

struct World {
    nodes: [Option<Has>; NODES],
    latest: u64,
    /// Whether a user has forced anything: only then may both run.
    forced: bool,
}

fn peer(number: usize) -> Peer {
    Peer {
        name: format!("node-{number}"),
        address: format!("10.0.0.{}:7071", number + 1).parse().unwrap(),
    }
}

fn number(of: &Peer) -> usize {
    (0..NODES).find(|number| peer(*number) == *of).unwrap()
}

impl World {
    fn new() -> World {
        let machine = Has {
            turn: None,
            runs: true,
            wrote: 0,
        };
        World {
            nodes: [Some(machine), None, None],
            latest: 0,
            forced: false,
        }
    }

    fn turn(&self, at: usize) -> Option<Turn> {
        self.nodes[at].as_ref().and_then(|has| has.turn.clone())
    }

    fn writes_down(&mut self, at: usize, turn: Turn) {
        self.nodes[at].as_mut().unwrap().turn = Some(turn);
    }

    /// Lets a guest go on if that is due.
    fn goes_on(&mut self, at: usize) {
        let forced = self.forced;
        let other_runs = (0..NODES).any(|other| other != at && self.runs(other));
        let latest = self.latest;
        let Some(has) = &mut self.nodes[at] else {
            return;
        };
        let Some(turn) = has.turn.clone().filter(Turn::is_due) else {
            return;
        };
        assert!(forced || !other_runs, "both run");
        assert!(forced || has.wrote == latest, "a write is lost");
        has.runs = true;
        has.turn = Some(turn.has_gone_on());
    }

    fn runs(&self, at: usize) -> bool {
        self.nodes[at].as_ref().is_some_and(|has| has.runs)
    }

    /// On how many nodes it runs.
    fn running(&self) -> usize {
        (0..NODES).filter(|at| self.runs(*at)).count()
    }

    fn fences(&mut self, at: usize, turn: Turn) {
        assert!(self.forced, "nobody is fenced unless a user has forced");
        let has = self.nodes[at].as_mut().unwrap();
        has.runs = false;
        has.turn = Some(turn);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Moves(at, to) => self.moves(at, to, false),
            Step::Lends(at, to) => self.moves(at, to, true),
            Step::Syncs(at) => self.syncs(at),
            Step::Ends(at, cut) => self.ends(at, cut),
            Step::Says(at, cut) => self.says(at, cut),
            Step::Asks(at, cut) => self.asks(at, cut),
            Step::Killed(at) | Step::Back(at) => {
                // a node that starts takes back what it had offered, as its user may; then it does what is due
                if let Some(turn) = self.turn(at).and_then(|turn| turn.takes_back()) {
                    self.writes_down(at, turn);
                }
                self.goes_on(at);
            }
            Step::Forced(at) => {
                let turn = self.turn(at).filter(|turn| self.may_be_forced(turn));
                if let Some(turn) = turn.and_then(|turn| turn.forces()) {
                    self.forced = true;
                    self.writes_down(at, turn);
                    self.goes_on(at);
                }
            }
            Step::Writes => {
                for has in self.nodes.iter_mut().flatten().filter(|has| has.runs) {
                    self.latest += 1;
                    has.wrote = self.latest;
                }
            }
        }
        assert!(self.forced || self.running() <= 1, "{:?}", self.nodes);
        let newest = self.nodes.iter().flatten().map(|has| has.wrote).max();
        assert_eq!(
            newest,
            Some(self.latest),
            "what was written last is nowhere"
        );
    }

    /// A copy that was not given is forced only if the node that it comes from does not say anything else.
    fn may_be_forced(&self, turn: &Turn) -> bool {
        let Side::Arriving { from } = &turn.side else {
            return true;
        };
        let answer = Turn::answer(self.turn(number(from)).as_ref(), turn.number);
        answer == Answer::Given
    }

    fn moves(&mut self, at: usize, to: usize, lends: bool) {
        // asked first, it says whether the machine could come
        let left = Side::Arriving { from: peer(at) };
        let lent = Side::Lent { to: peer(at) };
        let is_left = |has: &Has| {
            let side = has.turn.as_ref().map(|turn| &turn.side);
            side.is_some_and(|side| *side == left || *side == lent)
        };
        if at == to || !self.nodes[to].as_ref().is_none_or(is_left) {
            return;
        }
        // one that is borrowed goes back, and nowhere else
        let lender = self.turn(at).and_then(|turn| turn.lender);
        if lender.is_some_and(|lender| lends || lender != peer(to)) {
            return;
        }
        let Some(has) = &mut self.nodes[at] else {
            return;
        };
        let calm = has.turn.as_ref().is_none_or(|turn| !turn.is_open());
        if has.runs && calm {
            has.runs = false;
            let mut offered = Turn::offered(has.turn.as_ref(), KEY.into(), peer(to));
            offered.lends = lends;
            has.turn = Some(offered);
        }
    }

    fn ends(&mut self, at: usize, cut: Cut) {
        let Some(turn) = self.turn(at).and_then(|turn| turn.ends_loan()) else {
            return;
        };
        self.writes_down(at, turn.clone());
        if cut == Cut::Word {
            return;
        }
        let there = number(turn.borrower().unwrap());
        let borrowed = self.turn(there);
        let borrowed = borrowed.filter(|turn| turn.lender == Some(peer(at)));
        match borrowed.map(|turn| turn.side) {
            Some(Side::Here { .. }) => {
                self.nodes[there] = None;
                let left = self.nodes.iter().flatten().map(|has| has.wrote);
                self.latest = left.max().unwrap(); // what was thrown away is missed by nobody
            }
            Some(Side::Offered { .. } | Side::Away { .. } | Side::Arriving { .. }) => return,
            Some(Side::Fenced | Side::Lent { .. }) | None => {}
        }
        if cut == Cut::None {
            self.writes_down(at, turn.loan_ended().unwrap());
            self.goes_on(at);
        }
    }

    fn syncs(&mut self, at: usize) {
        let Some(lender) = self.turn(at).and_then(|turn| turn.lender) else {
            return;
        };
        let Some(has) = self.nodes[at].clone().filter(|has| has.runs) else {
            return;
        };
        let there = number(&lender);
        let turn = self.turn(there);
        if let Some(turn) = turn.and_then(|turn| turn.syncs(Hash::of(b"now"), peer(at).address)) {
            let wrote = has.wrote;
            self.nodes[there] = Some(Has {
                turn: Some(turn),
                runs: false,
                wrote,
            });
        }
    }

    /// The side that gives says its last word, again perhaps.
    fn says(&mut self, at: usize, cut: Cut) {
        let Some(turn) = self.turn(at) else { return };
        let given = matches!(turn.side, Side::Away { .. }) || turn.late.is_some();
        if !(given || matches!(turn.side, Side::Offered { .. })) || cut == Cut::Word {
            return;
        }
        let there = number(turn.late.as_ref().or(turn.peer()).unwrap());
        let heard = heard(self.turn(there).as_ref(), turn.number, given, &peer(at));
        let (mut ready, mut runs, mut stale) = (false, false, false);
        match heard {
            // a name that another machine has is refused
            Heard::Bring
                if self.nodes[there]
                    .as_ref()
                    .is_some_and(|has| has.turn.is_none()) =>
            {
                stale = true;
            }
            Heard::Bring if cut == Cut::Work => {}
            Heard::Bring => {
                let wrote = self.nodes[at].as_ref().unwrap().wrote;
                let mut arrived = Turn::arrived(KEY, turn.number, peer(at));
                arrived.lender = turn.lends.then(|| peer(at));
                self.nodes[there] = Some(Has {
                    turn: Some(arrived),
                    runs: false,
                    wrote,
                });
            }
            Heard::Ready => ready = true,
            Heard::Takes(taken) => {
                self.writes_down(there, taken);
                if cut == Cut::Work {
                    return;
                }
                self.goes_on(there);
                runs = true;
            }
            Heard::Runs => runs = true,
            Heard::Fence(turn) => {
                self.fences(there, turn);
                stale = true;
            }
            Heard::Void => {
                assert!(self.forced, "what was given is this copy");
                self.nodes[there] = None;
                stale = true;
            }
            Heard::Stale => stale = true,
        }
        if cut == Cut::Answer {
            return;
        }
        if turn.late.is_some() {
            if stale {
                self.writes_down(at, turn.has_told());
            }
        } else if let Some(given) = turn.gives().filter(|_| ready || runs) {
            self.writes_down(at, given);
        } else if let Some(lent) = turn.lent().filter(|_| runs) {
            self.writes_down(at, lent);
        } else if runs {
            self.nodes[at] = None;
        } else if let Some(back) = turn.takes_back().filter(|_| stale) {
            self.writes_down(at, back);
            self.goes_on(at);
        }
    }

    /// The side that takes asks where the machine is.
    fn asks(&mut self, at: usize, cut: Cut) {
        self.goes_on(at);
        let Some(turn) = self.turn(at) else { return };
        let takes = matches!(
            turn.side,
            Side::Arriving { .. } | Side::Here { owes: Some(_), .. }
        );
        if !takes || cut != Cut::None {
            return;
        }
        let from = number(turn.peer().unwrap());
        let answer = Turn::answer(self.turn(from).as_ref(), turn.number);
        match turn.told(turn.number, answer) {
            Told::Becomes(turn) => {
                self.writes_down(at, turn);
                self.goes_on(at);
            }
            Told::Drop => self.nodes[at] = None,
            Told::Fence(turn) => self.fences(at, turn),
            Told::Waits => {}
        }
    }

    /// Has both sides speak until they have nothing more to say. Nothing is cut any more, and nodes that were killed are back.
    fn settles(&mut self) {
        for _ in 0..ROUNDS {
            for at in 0..NODES {
                self.step(Step::Says(at, Cut::None));
                self.step(Step::Asks(at, Cut::None));
                if self.turn(at).is_some_and(|turn| turn.ends) {
                    self.step(Step::Ends(at, Cut::None));
                }
            }
        }
    }
}

fn steps(forcing: bool) -> impl Strategy<Value = Vec<Step>> {
    let cut = prop_oneof![
        3 => Just(Cut::None),
        1 => Just(Cut::Word),
        1 => Just(Cut::Work),
        1 => Just(Cut::Answer),
    ];
    let node = 0..NODES;
    let step = (0..if forcing { 12u8 } else { 11 }, node.clone(), node, cut);
    let step = step.prop_map(|(kind, at, to, cut)| match kind {
        0 => Step::Moves(at, to),
        1..=3 => Step::Says(at, cut),
        4 => Step::Asks(at, cut),
        5 => Step::Killed(at),
        6 => Step::Back(at),
        7 => Step::Writes,
        8 => Step::Lends(at, to),
        9 => Step::Syncs(at),
        10 => Step::Ends(at, cut),
        _ => Step::Forced(at),
    });
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// However often it moves to and fro, and whatever is cut or killed in between.
    #[test]
    fn at_most_one_side_runs_and_no_write_is_lost_whatever_is_cut(steps in steps(false)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.settles();
        prop_assert_eq!(world.running(), 1, "{:?}", world.nodes);
        for has in world.nodes.iter().flatten() {
            let turn = has.turn.as_ref();
            if has.runs {
                prop_assert_eq!(has.wrote, world.latest);
                prop_assert!(turn.is_none_or(|turn| !turn.is_open()));
            } else {
                // it was offered to that node, taken back and moved elsewhere, or it is lent
                let side = turn.map(|turn| &turn.side);
                let waits = matches!(side, Some(Side::Arriving { .. } | Side::Lent { .. }));
                prop_assert!(waits, "{:?}", side);
            }
        }
    }

    /// Users force what they may, also while all nodes are well. Once these have spoken, one runs, and what the others did is kept.
    #[test]
    fn whatever_users_force_one_side_runs_in_the_end_and_the_others_work_is_kept(steps in steps(true)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.settles();
        prop_assert_eq!(world.running(), 1, "{:?}", world.nodes);
        for has in world.nodes.iter().flatten().filter(|has| !has.runs) {
            let side = &has.turn.as_ref().unwrap().side;
            let kept = matches!(side, Side::Fenced | Side::Arriving { .. } | Side::Lent { .. });
            prop_assert!(kept, "{:?}", side);
        }
    }
}

#[test]
fn what_is_said_of_another_hand_over_or_by_another_node_changes_nothing() {
    let arriving = Turn::arrived(KEY, 3, peer(0));
    assert_eq!(heard(Some(&arriving), 2, true, &peer(0)), Heard::Stale);
    // its user had it go on where it comes from
    assert_eq!(heard(Some(&arriving), 4, true, &peer(0)), Heard::Void);
    assert_eq!(heard(Some(&arriving), 3, true, &peer(1)), Heard::Stale);
    assert_eq!(heard(None, 3, true, &peer(0)), Heard::Stale);
    // a void that was said of the offer before this one
    assert_eq!(arriving.told(2, Answer::Void), Told::Waits);
    assert_eq!(arriving.told(3, Answer::Void), Told::Drop);
    // that nobody knows of it any more is no word for it to go on, nor to go
    assert_eq!(arriving.told(3, Answer::Gone), Told::Waits);
    let taken = arriving.taken(&peer(0));
    assert_eq!(heard(Some(&taken), 3, true, &peer(0)), Heard::Runs);
    assert_eq!(heard(Some(&taken), 4, false, &peer(1)), Heard::Stale);
    // who gave it may ask for it back once it runs here, and nobody else
    assert!(taken.came_from(peer(0).address) && !taken.came_from(peer(1).address));
    assert!(!arriving.came_from(peer(0).address));
    assert_eq!(taken.takes_back(), None);
    assert_eq!(taken.gives(), None);
    // while the node that gave it has its copy, that may still say so: the machine goes nowhere else before it has none
    assert_eq!(taken.told(3, Answer::Given), Told::Waits);
    assert!(taken.is_open());
}

#[test]
fn a_side_that_was_given_the_machine_and_comes_back_late_is_fenced() {
    let offered = Turn::offered(None, KEY.into(), peer(1));
    let away = offered.gives().unwrap();
    let taken = Turn::arrived(KEY, away.number, peer(0)).taken(&peer(0));
    let forced = away.forces().unwrap();
    assert!(forced.is_here() && forced.is_due());
    // that side is told so until it has heard it
    let runs = forced.has_gone_on();
    assert_eq!(runs.late, Some(peer(1)));
    assert!(runs.is_open() && !runs.has_told().is_open());
    let heard = heard(Some(&taken), runs.number, true, &peer(0));
    assert_eq!(heard, Heard::Fence(taken.with(Side::Fenced)));
    let answer = Turn::answer(Some(&forced), taken.number);
    assert_eq!(answer, Answer::Void);
    let told = taken.told(taken.number, answer);
    assert_eq!(told, Told::Fence(taken.with(Side::Fenced)));
    assert!(taken.with(Side::Fenced).shown("web").is_some());
}

#[test]
fn a_loan_is_kept_and_forced_above_all_that_the_borrower_has_tried() {
    let mut offered = Turn::offered(None, KEY.into(), peer(1));
    offered.lends = true;
    let away = offered.gives().unwrap();
    let lent = away.lent().unwrap();
    assert!(lent.is_elsewhere() && !lent.is_open() && lent.gives().is_none());
    assert_eq!(lent.borrower(), Some(&peer(1)));
    let mut taken = Turn::arrived(KEY, away.number, peer(0)).taken(&peer(0));
    taken.lender = Some(peer(0));
    taken.size = Some(Size {
        cpus: 1,
        memory_bytes: 256 << 20,
    });
    // the lender says nothing more of it, and the borrower asks no more
    let answer = Turn::answer(Some(&lent), taken.number);
    let Told::Becomes(runs) = taken.told(taken.number, answer) else {
        panic!("{answer:?}");
    };
    let runs = runs.has_gone_on();
    assert!(!runs.is_open());
    // what the borrower tells is noted, and nobody else's word
    let image = Hash::of(b"an hour later");
    assert_eq!(lent.syncs(image, peer(2).address), None);
    let synced = lent.syncs(image, peer(1).address).unwrap();
    assert_eq!(synced.synced, Some(image));
    assert!(synced.shown("web").unwrap().contains("last synced"));
    // it could not be given back, twice
    let again = Turn::offered(Some(&runs), KEY.into(), peer(0));
    let back = again.takes_back().unwrap();
    let twice = Turn::offered(Some(&back), KEY.into(), peer(0));
    assert_eq!(twice.size, taken.size);
    assert_eq!(
        heard(Some(&synced), twice.number, false, &peer(1)),
        Heard::Bring
    );
    assert_eq!(
        heard(Some(&synced), twice.number, false, &peer(2)),
        Heard::Stale
    );
    assert_eq!(
        heard(Some(&synced), twice.number, true, &peer(1)),
        Heard::Stale
    );
    let forced = synced.forces().unwrap();
    assert!(forced.is_here() && forced.number > twice.number);
    assert_eq!(
        (forced.late.as_ref(), forced.synced),
        (Some(&peer(1)), None)
    );
    // a loan that ends goes on where it was lent once the other side has nothing of it, and what is offered is not brought any more
    assert_eq!(synced.loan_ended(), None);
    let ends = synced.ends_loan().unwrap();
    assert!(ends.is_open() && ends.borrower().is_some());
    assert_eq!(
        heard(Some(&ends), twice.number, false, &peer(1)),
        Heard::Stale
    );
    let ended = ends.loan_ended().unwrap();
    assert!(ended.is_due() && ended.late.is_none() && !ended.ends);
    // what is being offered is taken back first
    let said = heard(Some(&twice), forced.number, true, &peer(0));
    assert_eq!(said, Heard::Runs);
    let back = twice.takes_back().unwrap();
    let said = heard(Some(&back), forced.number, true, &peer(0));
    assert_eq!(said, Heard::Fence(back.with(Side::Fenced)));
    // of another it is no word
    assert_eq!(
        heard(Some(&back), forced.number, true, &peer(2)),
        Heard::Stale
    );
}

#[test]
fn what_has_no_lease_any_more_is_nobodys_to_let_go_on_before_its_lender_answers() {
    let mut taken = Turn::arrived(KEY, 1, peer(0)).taken(&peer(0));
    taken.lease_s = Some(60);
    assert_eq!(
        (taken.lease_ms(), taken.lapses()),
        (None, None),
        "it is no loan"
    );
    taken.lender = Some(peer(0));
    let runs = taken.has_gone_on();
    assert_eq!(runs.lease_ms(), Some(60_000));
    // that it could not be given back frees it of nothing
    let back = Turn::offered(Some(&runs), KEY.into(), peer(0)).takes_back();
    assert_eq!(back.unwrap().lease_ms(), Some(60_000));
    let lapsed = runs.lapses().unwrap();
    assert!(!lapsed.is_here() && !lapsed.is_due() && lapsed.lapses().is_none());
    // whoever lent it may have it back all the same
    assert!(lapsed.came_from(peer(0).address));
    assert!(lapsed.shown("web").unwrap().contains("node-0"));
    let listed = lapsed.listed().unwrap();
    assert_eq!(listed.standing, MoveStanding::Lapsed);
    let again = lapsed.unlapses();
    assert!(again.is_here() && again.is_due());
    // its user there had woken what came parked
    let mut came_parked = runs.clone();
    came_parked.parked = true;
    assert!(came_parked.lapses().unwrap().unlapses().is_due());
    // its lender has nothing of it any more
    let free = lapsed.needs_no_lease();
    assert!(free.is_here() && free.is_due() && free.lease_ms().is_none());
    assert!(!runs.needs_no_lease().is_due());
    assert_eq!((lapsed.forces(), runs.forces()), (Some(free), None));
    // one that was forced meanwhile is too late
    let said = heard(Some(&lapsed), 1 << 32, true, &peer(0));
    assert_eq!(said, Heard::Fence(lapsed.with(Side::Fenced)));
}

#[test]
fn what_was_parked_goes_on_nowhere_by_itself() {
    let mut offered = Turn::offered(None, KEY.into(), peer(1));
    offered.parked = true;
    let mut arriving = Turn::arrived(KEY, offered.number, peer(0));
    arriving.parked = true;
    let away = offered.gives().unwrap();
    let sides = [
        offered.takes_back().unwrap(),
        away.forces().unwrap(),
        arriving.taken(&peer(0)),
    ];
    for side in sides {
        assert!(side.is_here() && !side.is_due());
    }
}

#[test]
fn a_turn_is_read_as_it_was_written_and_one_of_another_kind_is_refused() {
    let offered = Turn::offered(None, KEY.into(), peer(1));
    for turn in [
        offered.clone(),
        offered.gives().unwrap(),
        offered.takes_back().unwrap(),
        offered.with(Side::Lent { to: peer(1) }),
        Turn::told_of(KEY.into()),
        Turn::arrived(KEY, 7, peer(0)),
        offered.with(Side::Fenced),
    ] {
        let text = serde_json::to_string(&turn).unwrap();
        assert_eq!(serde_json::from_str::<Turn>(&text).unwrap(), turn, "{text}");
        assert!(turn.check().is_ok());
        assert_eq!(turn.is_here(), turn.shown("web").is_none());
        assert_eq!(turn.is_here(), turn.listed().is_none());
    }
    assert!(Turn::arrived("../../x", 7, peer(0)).check().is_err());
    assert!(serde_json::from_str::<Turn>(r#"{"key":"a","number":1,"side":"elsewhere"}"#).is_err());
}
