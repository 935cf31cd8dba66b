//! Who may see a substrate, and remove it.

use super::record::SubstrateRecord;
use crate::caller::Caller;
use floe_api::Visibility;

impl SubstrateRecord {
    /// Whether the substrate exists for this caller.
    pub fn is_seen_by(&self, caller: &Caller) -> bool {
        let Caller::User { uid, name } = caller else {
            return true;
        };
        let named = |user: &String| Some(user) == name.as_ref() || *user == uid.to_string();
        self.owner_uid == *uid
            || match self.visibility {
                Visibility::Public => true,
                Visibility::Restricted => self.users.iter().any(named),
                Visibility::Private => false,
            }
    }

    /// Whether this caller may remove it.
    pub fn is_of(&self, caller: &Caller) -> bool {
        match caller {
            Caller::Node => true,
            Caller::User { uid, .. } => self.owner_uid == *uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn a_substrate_exists_for_those_who_may_see_it() {
        let user = |uid: u32, name: &str| Caller::User {
            uid,
            name: Some(name.into()),
        };
        let (owner, anna, berta) = (user(1000, "otto"), user(1001, "anna"), user(1002, "berta"));
        let private = record(Visibility::Private, &[]);
        let restricted = record(Visibility::Restricted, &["anna", "1003"]);
        let public = record(Visibility::Public, &[]);
        for (caller, sees) in [
            (&Caller::Node, [true, true, true]),
            (&owner, [true, true, true]),
            (&anna, [false, true, true]),
            (&berta, [false, false, true]),
            (&user(1003, "carl"), [false, true, true]),
        ] {
            let found = [&private, &restricted, &public].map(|record| record.is_seen_by(caller));
            assert_eq!(found, sees, "{caller:?}");
        }
        assert!(
            !restricted.is_of(&anna) && restricted.is_of(&owner) && private.is_of(&Caller::Node)
        );
    }
}
