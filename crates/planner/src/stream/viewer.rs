//! What belongs to one machine of an image: where in the model it is, what is planned for it, and whether it is paused. What is
//! here and under way belongs to all machines of the image ([`super::Stream`]).

use super::floe;
use super::groups::{Groups, State};
use super::pauses::{Pauses, Terms};
use super::plan::{Ahead, Lateness, Planned};
use super::vtube;
use super::{Lent, Progress, RTT_US_UNKNOWN, Waiting};
use crate::model::Model;
use crate::{Action, Config, Link, Policy};
use floe_sched::Who;

/// What all machines of an image share of the rule by which groups are chosen.
#[derive(Debug)]
pub(crate) enum Rule {
    VmTorrent,
    VTube(vtube::VTube),
    Floe(floe::Floe),
}

/// What one machine has of the rule for itself.
#[derive(Debug)]
enum Own {
    VmTorrent,
    VTube(vtube::Selected),
    Floe(floe::Place),
}

/// The stream of one machine.
#[derive(Debug)]
pub(crate) struct Viewer {
    /// For whom its plan is fetched.
    pub who: Who,
    own: Own,
    pub plan: Vec<Planned>,
    /// Index of the first part of the plan that may have something to send.
    pub next: usize,
    /// How far it has come with sending, by which the machines of an image take turns.
    pub sent: u64,
    touched: u64,
    misses: u64,
    started_us: u64,
    pauses: Pauses,
    /// Whether the miss was of a chunk that the model knows.
    late: bool,
    last_group: Option<u32>,
    replan: bool,
}

impl Rule {
    /// Returns the rule of a policy that uses a model.
    pub(crate) fn new(policy: Policy, model: &Model) -> Self {
        match policy {
            Policy::VTube => Rule::VTube(vtube::VTube::new(model)),
            Policy::Floe => Rule::Floe(floe::Floe::new(model)),
            _ => Rule::VmTorrent,
        }
    }
}

impl Viewer {
    /// Makes the stream of a machine. `running`: it runs already, so its start isn't buffered.
    pub(crate) fn new(
        who: Who,
        running: bool,
        model: &Model,
        rule: &mut Rule,
        (now_us, config): (u64, &Config),
    ) -> Self {
        let mut plan = Vec::new();
        let own = match rule {
            Rule::VTube(vtube) => {
                let mut selected = vtube::Selected::new(model, config);
                if !running {
                    vtube.trigger(&mut selected, model, None, 0, config);
                }
                Own::VTube(selected)
            }
            Rule::Floe(_) => Own::Floe(floe::Place::new(model)),
            Rule::VmTorrent => {
                let rows = model.rows().iter().enumerate();
                plan.extend(rows.map(|(g, row)| Planned {
                    group: g as u32,
                    due_us: u64::from(row.mean_ms) * 1000,
                    order_us: u64::from(row.mean_ms) * 1000,
                    sure: true,
                    backed: true,
                }));
                Own::VmTorrent
            }
        };
        Self {
            who,
            own,
            plan,
            next: 0,
            sent: 0,
            touched: 0,
            misses: 0,
            started_us: now_us,
            pauses: Pauses::new(running),
            late: false,
            last_group: None,
            replan: true,
        }
    }

    /// Returns the time on the machine's own clock: since its stream began, without pauses.
    fn run_us(&self, now_us: u64) -> u64 {
        now_us
            .saturating_sub(self.started_us)
            .saturating_sub(self.pauses.paused_us(now_us))
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.pauses.is_paused()
    }

    /// Adds what is this machine's alone to what all machines of its image share.
    pub(crate) fn progress(&self, shared: Progress, groups: &Groups) -> Progress {
        let wanted = self
            .plan
            .iter()
            .map(|p| u64::from(groups.missing_chunks(p.group)));
        Progress {
            planned_chunks: groups.here + wanted.sum::<u64>() + self.touched,
            touched: self.touched,
            misses: self.misses,
            buffering: self.pauses.told(),
            ..shared
        }
    }

    /// Notes that the machine touched a chunk; `known` is the group of a chunk that the model knows, and its state before.
    pub(crate) fn touch(
        &mut self,
        known: Option<(u32, State)>,
        missed: bool,
        (model, rule): (&Model, &mut Rule),
        lent: &Lent<'_>,
    ) {
        self.touched += 1;
        self.misses += u64::from(missed);
        self.pauses.touched();
        let Some((group, state)) = known else {
            return;
        };
        let run_us = self.run_us(lent.now_us);
        self.last_group = Some(group);
        if missed {
            self.pauses.missed();
        }
        self.late |= missed && state != State::Never;
        match (&mut self.own, rule) {
            (Own::VTube(selected), Rule::VTube(vtube)) if missed => {
                self.replan |= vtube.trigger(selected, model, Some(group), run_us, lent.config);
            }
            (Own::Floe(place), _) => place.touch(model, group, missed, run_us),
            _ => {}
        }
    }

    /// Notes that something of the image has arrived.
    pub(crate) fn came(&mut self, now_us: u64) {
        self.pauses.came(now_us);
    }

    /// Makes a plan if it is time. `speculation` is how many speculative chunks may be sent.
    pub(crate) fn choose(
        &mut self,
        (model, rule): (&Model, &mut Rule),
        groups: &Groups,
        speculation: u64,
        lent: &Lent<'_>,
    ) {
        let run_us = self.run_us(lent.now_us);
        match (&mut self.own, rule) {
            (Own::VTube(selected), Rule::VTube(vtube)) => {
                if run_us >= selected.hint_at_us {
                    selected.hint_at_us = run_us + lent.config.hint_us;
                    if self.last_group.is_some() {
                        let last = self.last_group;
                        self.replan |= vtube.trigger(selected, model, last, run_us, lent.config);
                    }
                }
                if std::mem::take(&mut self.replan) {
                    self.plan = selected.plan(groups);
                    self.next = 0;
                }
            }
            (Own::Floe(place), Rule::Floe(floe)) if place.is_due(run_us) => {
                let choice = floe::Choice {
                    config: lent.config,
                    link: lent.link.unwrap_or(Link {
                        bytes_per_s: lent.config.slow_bytes_per_s,
                        rtt_us: RTT_US_UNKNOWN,
                    }),
                    run_us,
                    speculation,
                };
                self.plan = floe.plan(place, groups, &choice);
                self.next = 0;
            }
            _ => {}
        }
    }

    /// Returns whether it is to be decided now whether the machine pauses or goes on.
    pub(crate) fn decides(&self, now_us: u64) -> bool {
        !matches!(self.own, Own::VmTorrent) && self.pauses.decides(now_us)
    }

    /// Returns what is planned, and the time by which it is judged whether that comes too late.
    pub(crate) fn ahead(&self, lent: &Lent<'_>) -> Ahead<'_> {
        // A machine that has overtaken its plan will do so again: it goes on only with a reserve.
        let foreseen = self.is_paused() || self.late;
        let reserve = matches!(self.own, Own::Floe(_)) && foreseen;
        let reserve_us = if reserve { lent.config.reserve_us } else { 0 };
        Ahead {
            plan: &self.plan,
            run_us: self.run_us(lent.now_us) + reserve_us,
        }
    }

    /// Returns what its pauses are held to. What is chosen for our own rule leaves the published one as it is.
    fn terms(&self, config: &Config) -> Terms {
        let (start_us_min, pause_us_min, run_us_min) = match self.own {
            Own::Floe(_) => (
                config.start_pause_us_min,
                config.pause_us_min,
                config.run_us_min,
            ),
            Own::VTube(_) | Own::VmTorrent => {
                (vtube::PAUSE_US_MIN, vtube::PAUSE_US_MIN, vtube::RUN_US_MIN)
            }
        };
        Terms {
            start_us_min,
            pause_us_min,
            run_us_min,
            idle_us_max: config.pause_idle_us_max,
            pause_us_max: config.pause_us_max,
        }
    }

    /// Pauses the machine that would come that late, or lets it go on.
    pub(crate) fn decide(&mut self, late: Lateness, lent: &Lent<'_>) -> Option<Action> {
        self.late &= self.is_paused();
        let terms = self.terms(lent.config);
        let pause = self.pauses.decide(lent.now_us, late, &terms)?;
        let told = Waiting {
            missing_bytes: late.bytes,
            eta_us: late.us,
        };
        Some(self.buffer(pause, told))
    }

    /// Ends the machine's stream: if it is paused, it goes on.
    pub(crate) fn end(self) -> Option<Action> {
        let paused = self.is_paused();
        paused.then(|| self.buffer(false, Waiting::default()))
    }

    fn buffer(&self, pause: bool, told: Waiting) -> Action {
        Action::Buffer {
            machine: self.who.machine,
            pause,
            missing_bytes: told.missing_bytes,
            eta_us: told.eta_us,
        }
    }
}
