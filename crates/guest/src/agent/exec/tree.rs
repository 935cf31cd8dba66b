//! Where commands are started, so that all that they start can be found: by their control groups, or by looking at all processes.

use super::groups::{Group, Groups};
use super::start::{self, Refused, Started};
use super::walk;
use crate::agent::shield::Shield;
use crate::agent::sys;
use crate::exec::request::Request;
use std::io;

/// What a command has started, itself included.
pub(super) enum Tree {
    /// The processes in this control group.
    Group(Group),
    /// The processes that descend from its first process, or have its mark.
    Walk {
        /// The first process.
        first: u32,
        /// The mark.
        mark: String,
    },
}

impl Tree {
    fn members(&self) -> io::Result<Vec<u32>> {
        let mut all = match self {
            Tree::Group(group) => group.members()?,
            Tree::Walk { first, mark } => walk::members(*first, mark)?,
        };
        // should the kernel not have let the agent out of the group
        all.retain(|process| *process != std::process::id());
        Ok(all)
    }

    /// Returns whether any of it runs, as far as is known.
    pub fn is_left(&self) -> bool {
        match self.members() {
            Ok(all) => !all.is_empty(),
            Err(_) => true,
        }
    }

    /// Sends all of it a signal.
    pub fn signal(&self, number: u8) {
        match self.members() {
            Ok(all) => all
                .into_iter()
                .for_each(|process| sys::signal(process, number)),
            Err(error) => eprintln!("floe-guest: cannot find what a command started: {error}"),
        }
    }
}

/// What starts commands.
pub(super) struct Trees {
    /// `None` if the kernel has none.
    groups: Option<Groups>,
    shield: Shield,
    /// What the marks of this agent begin with, and how many there were.
    marks: (String, u64),
}

impl Trees {
    pub fn new() -> Trees {
        let groups = Groups::open();
        if let Err(error) = &groups {
            eprintln!(
                "floe-guest: there are no control groups for commands ({error}); what they start is found by its parents and environment"
            );
        }
        Trees {
            groups: groups.ok(),
            shield: Shield::raise(),
            marks: (format!("{}-{}", std::process::id(), sys::now_ms()), 0),
        }
    }

    /// Starts a process as a request wants it. Returns it with a [`Tree`], by which everything that it starts can be found.
    pub fn start(&mut self, request: &Request) -> Result<(Started, Tree), Refused> {
        let group = self.enter();
        let mark = group.is_none().then(|| self.mark());
        let started = self
            .shield
            .without(|| start::start(request, mark.as_deref()));
        if group.is_some() {
            self.leave();
        }
        match (started, group) {
            (Ok(started), Some(group)) => Ok((started, Tree::Group(group))),
            (Ok(started), None) => {
                let (first, mark) = (started.pid, mark.unwrap_or_default());
                Ok((started, Tree::Walk { first, mark }))
            }
            (Err(refused), group) => {
                if let Some(group) = group {
                    self.end(Tree::Group(group));
                }
                Err(refused)
            }
        }
    }

    /// A command counts as ended: what is left of it is its own affair.
    pub fn end(&mut self, tree: Tree) {
        if let (Some(groups), Tree::Group(group)) = (&mut self.groups, tree) {
            groups.remove(group);
        }
    }

    fn enter(&mut self) -> Option<Group> {
        let entered = self.groups.as_mut()?.enter();
        entered
            .inspect_err(|error| eprintln!("floe-guest: no control group for a command: {error}"))
            .ok()
    }

    fn leave(&mut self) {
        let left = self.groups.as_mut().map_or(Ok(()), Groups::leave);
        if let Err(error) = left {
            eprintln!("floe-guest: cannot leave a command's control group: {error}");
        }
    }

    fn mark(&mut self) -> String {
        self.marks.1 += 1;
        format!("{}-{}", self.marks.0, self.marks.1)
    }
}
