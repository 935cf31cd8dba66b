//! A name that changes under those who hold the machine.

use floe_ground::names::MachineName;
use parking_lot::RwLock;
use std::{fmt, ops::Deref};

/// The name of a machine as it is now. Read it once where two readings have to agree.
#[derive(Debug)]
pub struct Named {
    first: MachineName,
    /// The name that its user gave it later. It is never freed, so that a reader of an earlier one needs no lock: some fifty bytes
    /// for each time that somebody types a new name.
    later: RwLock<Option<&'static MachineName>>,
}

impl Named {
    /// Returns the name of a new machine.
    pub fn new(first: MachineName) -> Named {
        Named {
            first,
            later: RwLock::new(None),
        }
    }

    /// Changes the name.
    pub(super) fn becomes(&self, name: MachineName) {
        *self.later.write() = Some(Box::leak(Box::new(name)));
    }
}

impl Deref for Named {
    type Target = MachineName;

    fn deref(&self) -> &MachineName {
        self.later.read().unwrap_or(&self.first)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_read_a_name_keeps_it_and_who_reads_again_gets_the_new_one() {
        let name = Named::new("web".parse().unwrap());
        let before: &MachineName = &name;
        name.becomes("web-old".parse().unwrap());
        assert_eq!((before.as_str(), name.as_str()), ("web", "web-old"));
        assert_eq!(name.to_string(), "web-old");
    }
}
