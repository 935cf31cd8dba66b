//! Tests the planner's promises, with tables of events and with properties of random ones.

use floe_planner::{Action, Config, Event, Link, Planner, Urgency};
use floe_sched::{Class, MachineId, Purpose, Who};
use proptest::prelude::*;
use std::collections::HashSet;

const MOBILE: Link = Link {
    bytes_per_s: 900e3,
    rtt_us: 120_000,
};
const LAN: Link = Link {
    bytes_per_s: 1e9,
    rtt_us: 200,
};

/// The machine of these tests, which is in no hurry, and for whom something is fetched ahead.
const ONE: Who = Who {
    machine: MachineId(1),
    purpose: Purpose::Demand,
    class: Class::Bulk,
};
const AHEAD: Who = Who {
    purpose: Purpose::Prefetch,
    ..ONE
};
/// For whom tables are loaded that nobody waits for.
const NODE: Who = Who {
    machine: MachineId::NONE,
    purpose: Purpose::Prefetch,
    class: Class::Normal,
};

fn planner(link: Link, chunks: u64) -> Planner {
    let mut planner = Planner::new(Config::default());
    planner.on_event(
        0,
        Event::LinkEstimate {
            link: 0,
            measured: link,
        },
    );
    planner.on_event(
        0,
        Event::RegionAdded {
            region: 0,
            link: 0,
            image: 0,
            chunks,
            segments: vec![],
            urgency: Urgency::Memory,
        },
    );
    planner
}

/// A region as the mount sees it: fetches arrive at once, every touch is a hit or a miss.
struct Guest {
    planner: Planner,
    local: HashSet<u64>,
    touched: HashSet<u64>,
    fetched: u64,
    misses: u64,
    pushed: HashSet<u64>,
}

impl Guest {
    fn new(link: Link, chunks: u64) -> Self {
        Self {
            planner: planner(link, chunks),
            local: HashSet::new(),
            touched: HashSet::new(),
            fetched: 0,
            misses: 0,
            pushed: HashSet::new(),
        }
    }

    fn candidates(&self, block: u64) -> u64 {
        (0..64)
            .filter(|i| !self.local.contains(&(block * 64 + i)))
            .map(|i| 1u64 << i)
            .sum()
    }

    fn touch(&mut self, chunk: u64) {
        if !self.touched.insert(chunk) || self.pushed.contains(&chunk) {
            return;
        }
        let event = if self.local.contains(&chunk) {
            Event::Hit {
                region: 0,
                chunk,
                who: ONE,
            }
        } else {
            self.misses += 1;
            self.fetched += 1;
            let candidates = self.candidates(chunk / 64);
            self.local.insert(chunk);
            Event::Miss {
                region: 0,
                chunk,
                candidates,
                who: ONE,
            }
        };
        self.tell(event);
    }

    fn tell(&mut self, event: Event) {
        for action in self.planner.on_event(0, event) {
            match action {
                Action::Fetch {
                    region,
                    block,
                    chunks,
                    who,
                } => {
                    for i in (0..64).filter(|i| chunks >> i & 1 == 1) {
                        assert!(self.local.insert(block * 64 + i), "fetched twice");
                        self.fetched += 1;
                    }
                    self.tell(Event::Fetched {
                        region,
                        block,
                        chunks,
                        ok: true,
                        who,
                    });
                }
                Action::Look { region, block, who } => {
                    let candidates = self.candidates(block);
                    self.tell(Event::Candidates {
                        region,
                        block,
                        candidates,
                        who,
                    });
                }
                Action::Push { block, chunks, .. } => {
                    self.pushed.extend(
                        (0..64)
                            .filter(|i| chunks >> i & 1 == 1)
                            .map(|i| block * 64 + i),
                    );
                }
                Action::FetchSegments { .. } => panic!("there are no tables"),
                Action::Buffer { .. } => panic!("there is no model"),
            }
        }
    }
}

#[test]
fn a_miss_fetches_the_aligned_window_without_what_is_here_or_zero() {
    let mut planner = planner(MOBILE, 1000);
    let actions = planner.on_event(
        1,
        Event::Miss {
            region: 0,
            chunk: 64 + 10,
            candidates: 0b1011_0111 << 8,
            who: ONE,
        },
    );
    assert_eq!(
        actions,
        [Action::Fetch {
            region: 0,
            block: 1,
            chunks: 0b1011_0011 << 8,
            who: AHEAD,
        }]
    );
    // The same window isn't asked for twice.
    let again = planner.on_event(
        2,
        Event::Miss {
            region: 0,
            chunk: 64 + 11,
            candidates: 0xFF << 8,
            who: ONE,
        },
    );
    assert_eq!(
        again,
        [Action::Fetch {
            region: 0,
            block: 1,
            chunks: 0b0100_0000 << 8,
            who: AHEAD,
        }]
    );
}

#[test]
fn a_failed_fetch_may_be_asked_for_again() {
    let mut planner = planner(MOBILE, 64);
    let actions = planner.on_event(
        1,
        Event::Miss {
            region: 0,
            chunk: 0,
            candidates: 0xFF,
            who: ONE,
        },
    );
    assert_eq!(
        actions,
        [Action::Fetch {
            region: 0,
            block: 0,
            chunks: 0xFE,
            who: AHEAD,
        }]
    );
    planner.on_event(
        2,
        Event::Fetched {
            region: 0,
            block: 0,
            chunks: 0xFE,
            ok: false,
            who: AHEAD,
        },
    );
    assert_eq!(planner.counters().unused, 0);
    assert_eq!(planner.counters().in_flight, 0);
    let actions = planner.on_event(
        3,
        Event::Miss {
            region: 0,
            chunk: 1,
            candidates: 0xFE,
            who: ONE,
        },
    );
    assert_eq!(
        actions,
        [Action::Fetch {
            region: 0,
            block: 0,
            chunks: 0xFC,
            who: AHEAD,
        }]
    );
}

#[test]
fn reading_in_order_soon_misses_nothing_and_is_pushed() {
    let mut guest = Guest::new(LAN, 64 * 1024);
    (0..16 * 1024).for_each(|chunk| guest.touch(chunk));
    assert_eq!(guest.planner.window_chunks(0), Some(64));
    assert!(guest.misses < 50, "{} misses", guest.misses);
    assert!(guest.pushed.len() > 8000, "{} pushed", guest.pushed.len());
    assert!(
        guest.fetched <= 16 * 1024 + 128,
        "{} fetched",
        guest.fetched
    );
}

#[test]
fn scattered_touches_end_the_guessing() {
    let mut guest = Guest::new(LAN, 1 << 20);
    (0..4000u64).for_each(|i| guest.touch(i * 7919 % (1 << 20)));
    assert_eq!(guest.planner.window_chunks(0), Some(1));
    let before = guest.fetched;
    (4000..8000u64).for_each(|i| guest.touch(i * 7919 % (1 << 20)));
    assert!(guest.fetched - before < 4100, "{}", guest.fetched - before);
}

#[test]
fn neighbours_start_the_guessing_again() {
    let mut guest = Guest::new(LAN, 1 << 20);
    (0..4000u64).for_each(|i| guest.touch(i * 7919 % (1 << 20)));
    let start = 900_000;
    (start..start + 4000).for_each(|chunk| guest.touch(chunk));
    assert!(guest.planner.window_chunks(0) >= Some(16));
}

#[test]
fn tables_come_memory_first_and_on_a_slow_link_one_at_a_time() {
    let mut planner = Planner::new(Config::default());
    planner.on_event(
        0,
        Event::LinkEstimate {
            link: 0,
            measured: MOBILE,
        },
    );
    let disk = Event::RegionAdded {
        region: 1,
        link: 0,
        image: 0,
        chunks: 4096,
        segments: vec![0, 1],
        urgency: Urgency::Storage,
    };
    assert_eq!(planner.on_event(0, disk), []);
    let ram = Event::RegionAdded {
        region: 0,
        link: 0,
        image: 0,
        chunks: 4096,
        segments: vec![2, 0],
        urgency: Urgency::Memory,
    };
    assert_eq!(
        planner.on_event(0, ram),
        [Action::FetchSegments {
            region: 0,
            segments: vec![2],
            who: NODE,
        }]
    );
    let loaded = |region, segment, ok| Event::SegmentLoaded {
        region,
        segment,
        ok,
    };
    assert_eq!(
        planner.on_event(1, loaded(0, 2, false)),
        [Action::FetchSegments {
            region: 0,
            segments: vec![0],
            who: NODE,
        }]
    );
    // The failed one waits for the next measurement of the link.
    assert_eq!(planner.on_event(2, loaded(0, 0, true)), []);
    assert_eq!(
        planner.on_event(
            2,
            Event::LinkEstimate {
                link: 0,
                measured: MOBILE
            }
        ),
        [Action::FetchSegments {
            region: 0,
            segments: vec![2],
            who: NODE,
        }]
    );
    assert_eq!(planner.on_event(3, loaded(0, 2, true)), []);
    assert_eq!(
        planner.on_event(
            4,
            Event::LinkEstimate {
                link: 0,
                measured: LAN
            }
        ),
        [Action::FetchSegments {
            region: 1,
            segments: vec![0, 1],
            who: NODE,
        }]
    );
}

#[test]
fn a_table_that_never_comes_is_not_asked_for_without_end() {
    let mut planner = Planner::new(Config::default());
    let ram = Event::RegionAdded {
        region: 0,
        link: 0,
        image: 0,
        chunks: 4096,
        segments: vec![0],
        urgency: Urgency::Memory,
    };
    let mut actions = planner.on_event(0, ram);
    let mut asked = 0;
    for _ in 0..100 {
        asked += actions.len();
        for _ in actions {
            planner.on_event(
                1,
                Event::SegmentLoaded {
                    region: 0,
                    segment: 0,
                    ok: false,
                },
            );
        }
        actions = planner.on_event(
            2,
            Event::LinkEstimate {
                link: 0,
                measured: MOBILE,
            },
        );
    }
    assert_eq!(asked, 5);
}

#[test]
fn what_is_expected_waits_for_its_table_and_its_table_comes_first() {
    let mut planner = Planner::new(Config::default());
    planner.on_event(
        0,
        Event::LinkEstimate {
            link: 0,
            measured: MOBILE,
        },
    );
    let ram = Event::RegionAdded {
        region: 0,
        link: 0,
        image: 0,
        chunks: 8 * 1024,
        segments: vec![0, 1, 2, 3, 4, 5],
        urgency: Urgency::Memory,
    };
    // One table at a time while nobody knows which are needed; number 7 is here, or all zero.
    let tables = |segments, who| Action::FetchSegments {
        region: 0,
        segments,
        who,
    };
    assert_eq!(planner.on_event(0, ram), [tables(vec![0], NODE)]);
    let expect = Event::Expect {
        region: 0,
        chunks: vec![5 * 1024, 3 * 1024, 7 * 1024, 5 * 1024 + 1],
        who: ONE,
    };
    let here = Action::Fetch {
        region: 0,
        block: 7 * 16,
        chunks: 1,
        who: AHEAD,
    };
    assert_eq!(
        planner.on_event(1, expect),
        [here, tables(vec![5, 3], AHEAD)],
        "the expected tables before the others, all at once"
    );
    let loaded = |segment| Event::SegmentLoaded {
        region: 0,
        segment,
        ok: true,
    };
    let fetch = |block, chunks| Action::Fetch {
        region: 0,
        block,
        chunks,
        who: AHEAD,
    };
    assert_eq!(planner.on_event(2, loaded(5)), [fetch(5 * 16, 3)]);
    assert_eq!(planner.on_event(2, loaded(3)), [fetch(3 * 16, 1)]);
    assert_eq!(planner.on_event(2, loaded(0)), [tables(vec![1], NODE)]);
}

#[test]
fn what_is_expected_comes_in_its_order_as_the_link_has_room() {
    let mut planner = planner(MOBILE, 4096);
    let mut actions = planner.on_event(
        0,
        Event::Expect {
            region: 0,
            chunks: (0..1000).rev().collect(),
            who: ONE,
        },
    );
    let mut fetched = 0u32;
    let mut rounds = 0;
    while !actions.is_empty() {
        let in_flight: u32 = actions
            .iter()
            .map(|a| {
                if let Action::Fetch { chunks, .. } = a {
                    chunks.count_ones()
                } else {
                    0
                }
            })
            .sum();
        assert!(in_flight <= 160, "{in_flight} in flight");
        fetched += in_flight;
        rounds += 1;
        let mut next = Vec::new();
        for action in actions {
            let Action::Fetch {
                region,
                block,
                chunks,
                who,
            } = action
            else {
                panic!("{action:?}")
            };
            next.extend(planner.on_event(
                1,
                Event::Fetched {
                    region,
                    block,
                    chunks,
                    ok: true,
                    who,
                },
            ));
        }
        actions = next;
    }
    assert_eq!(fetched, 1000);
    assert!(rounds > 5);
}

#[test]
fn a_removed_region_takes_its_waste_along() {
    let mut planner = planner(MOBILE, 4096);
    planner.on_event(
        1,
        Event::Miss {
            region: 0,
            chunk: 0,
            candidates: u64::MAX,
            who: ONE,
        },
    );
    assert!(planner.counters().unused > 0);
    planner.on_event(2, Event::RegionRemoved { region: 0 });
    assert_eq!(planner.counters().unused, 0);
    assert_eq!(
        planner.on_event(
            3,
            Event::Miss {
                region: 0,
                chunk: 1,
                candidates: u64::MAX,
                who: ONE,
            }
        ),
        []
    );
}

fn accesses() -> impl Strategy<Value = Vec<u64>> {
    let run = (0u64..60_000, 1u64..200, 1u64..4).prop_map(|(at, len, step)| {
        (at..at + len * step)
            .step_by(step as usize)
            .collect::<Vec<_>>()
    });
    proptest::collection::vec(run, 1..60).prop_map(|runs| runs.concat())
}

proptest! {
    #[test]
    fn on_a_slow_link_the_overfetch_stays_within_its_bound(accesses in accesses()) {
        let mut guest = Guest::new(MOBILE, 1 << 16);
        accesses.iter().for_each(|chunk| guest.touch(*chunk));
        let touched = guest.touched.len() as f64;
        let free = 900e3 * 0.12 * 2.8 / 4096.0;
        prop_assert!(guest.fetched as f64 <= 1.25 * touched + free + 64.0, "{} for {touched}", guest.fetched);
    }

    #[test]
    fn equal_events_give_equal_actions(accesses in accesses()) {
        let run = || {
            let mut planner = planner(LAN, 1 << 16);
            accesses.iter().map(|c| planner.on_event(0, Event::Miss { region: 0, chunk: *c, candidates: u64::MAX, who: ONE })).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn no_event_makes_it_panic_or_fetch_outside(region in 0u32..3, chunk in any::<u64>(), mask in any::<u64>(), bytes_per_s in any::<f64>(), rtt_us in any::<u64>()) {
        let mut planner = planner(LAN, 100);
        let events = [
            Event::LinkEstimate { link: 0, measured: Link { bytes_per_s, rtt_us } },
            Event::Miss { region, chunk, candidates: mask, who: ONE },
            Event::Hit { region, chunk, who: ONE },
            Event::Candidates { region, block: chunk, candidates: mask, who: ONE },
            Event::Fetched { region, block: chunk, chunks: mask, ok: mask & 1 == 0, who: AHEAD },
            Event::Expect { region, chunks: vec![chunk, chunk], who: ONE },
            Event::SegmentLoaded { region, segment: rtt_us as u32, ok: false },
        ];
        for event in events {
            for action in planner.on_event(0, event) {
                if let Action::Fetch { region, block, chunks, .. } = action {
                    prop_assert!(region == 0 && block < 2);
                    prop_assert!(chunks & !mask == 0 || chunks == 1 << (chunk % 64));
                }
            }
        }
    }
}
