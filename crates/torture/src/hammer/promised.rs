//! What a hub has acknowledged, and what of it is missing: images that were pushed, and users' tokens. No I/O.

use std::collections::BTreeMap;

/// So many of the last pushes stay on the hub, so that many blows fall on each.
const PUSHES_KEPT: usize = 3;

/// What must be on the hub.
#[derive(Clone, Debug, Default)]
pub struct Promised {
    /// The names of pushed images by their ids, oldest first.
    pushed: Vec<(String, String)>,
    /// How many tokens each user has at least.
    tokens: BTreeMap<String, u64>,
}

impl Promised {
    /// The hub has acknowledged an image.
    pub fn pushed(&mut self, id: &str, name: &str) {
        self.gone(id);
        self.pushed.push((id.into(), name.into()));
    }

    /// An image is about to be removed: whether it is there is not known from now on.
    pub fn gone(&mut self, id: &str) {
        self.pushed.retain(|(known, _)| known != id);
    }

    /// Whether an image is to stay.
    pub fn stays(&self, id: &str) -> bool {
        let last = self.pushed.iter().rev().take(PUSHES_KEPT);
        last.into_iter().any(|(known, _)| known == id)
    }

    /// Returns the ids and names of all images that must be there.
    pub fn images(&self) -> Vec<(String, String)> {
        self.pushed.clone()
    }

    /// Returns which of the images that were promised before the hub was asked, and still are, it has not listed. They are
    /// promised no more, so that each is told once.
    pub fn lost_pushes(&mut self, before: &Promised, listed: &[String]) -> Vec<String> {
        let lost = |(id, _): &(String, String)| {
            !listed.contains(id) && before.pushed.iter().any(|(known, _)| known == id)
        };
        let (gone, there) = self.pushed.drain(..).partition(lost);
        self.pushed = there;
        let gone: Vec<(String, String)> = gone;
        gone.into_iter()
            .map(|(id, name)| format!("{name} ({id})"))
            .collect()
    }

    /// A user has got a token.
    pub fn token(&mut self, user: &str) {
        *self.tokens.entry(user.into()).or_default() += 1;
    }

    /// A user's tokens are about to be revoked.
    pub fn revoked(&mut self, user: &str) {
        self.tokens.remove(user);
    }

    /// Returns the users of whose tokens fewer are listed than there must be, each once.
    pub fn lost_tokens(&mut self, listed: &BTreeMap<String, u64>) -> Vec<String> {
        let fewer = |user: &str, tokens: u64| listed.get(user).is_none_or(|has| *has < tokens);
        let lost = self.tokens.iter().filter(|(user, has)| fewer(user, **has));
        let lost =
            lost.map(|(user, had)| format!("{user} had {had} and has {:?}", listed.get(user)));
        let lost = lost.collect();
        self.tokens.retain(|user, had| !fewer(user, *had));
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_is_lost_if_it_was_acknowledged_before_and_is_not_listed() {
        let mut now = Promised::default();
        now.pushed("1", "a");
        now.pushed("2", "b");
        let before = now.clone();
        now.gone("2");
        now.pushed("3", "c");
        assert_eq!(now.lost_pushes(&before, &[]), ["a (1)"]);
        assert!(now.lost_pushes(&before, &[]).is_empty());
        assert_eq!(now.images(), [("3".into(), "c".into())]);
    }

    #[test]
    fn the_last_pushes_stay() {
        let mut now = Promised::default();
        for id in ["1", "2", "3", "4"] {
            now.pushed(id, id);
        }
        let stay = ["1", "2", "3", "4"].map(|id| now.stays(id));
        assert_eq!(stay, [false, true, true, true]);
    }

    #[test]
    fn a_user_may_have_more_tokens_than_were_acknowledged_but_not_fewer() {
        let mut now = Promised::default();
        for user in ["a", "a", "b", "c"] {
            now.token(user);
        }
        now.revoked("c");
        let listed = [("a".to_owned(), 1), ("b".to_owned(), 2)].into();
        assert_eq!(now.lost_tokens(&listed), ["a had 2 and has Some(1)"]);
        assert!(now.lost_tokens(&listed).is_empty());
    }
}
