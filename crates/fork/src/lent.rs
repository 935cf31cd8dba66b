//! Images of this node that another member of the cluster may read although they are no fork's: what a machine is that moves there.
//!
//! They are known in memory only: whoever offers a machine again after this node was started anew lends its image again.

use floe_image::Hash;
use parking_lot::Mutex;
use std::collections::HashMap;

/// The images that are lent, each with its token. Locks: itself, briefly.
#[derive(Default)]
pub struct Lent(Mutex<HashMap<Hash, String>>);

impl Lent {
    /// Lends an image until [`Lent::end`]; returns the token that opens it, and nothing else.
    pub fn lend(&self, image: Hash) -> String {
        let token = || {
            format!(
                "{:032x}{:032x}",
                rand::random::<u128>(),
                rand::random::<u128>()
            )
        };
        self.0.lock().entry(image).or_insert_with(token).clone()
    }

    /// Lends it no more.
    pub fn end(&self, image: &Hash) {
        self.0.lock().remove(image);
    }

    /// Whether a token opens this image.
    pub fn opens(&self, token: &str, image: &Hash) -> bool {
        let lent = self.0.lock();
        // comparing hashes takes the same time whatever the token, so it reveals nothing
        let is_its = |known: &String| Hash::of(known.as_bytes()) == Hash::of(token.as_bytes());
        lent.get(image).is_some_and(is_its)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_one_image_while_that_is_lent() {
        let (lent, image, other) = (Lent::default(), Hash::of(b"image"), Hash::of(b"other"));
        let token = lent.lend(image);
        assert_eq!(lent.lend(image), token, "it stays while it is lent");
        let others = lent.lend(other);
        assert!(lent.opens(&token, &image) && lent.opens(&others, &other));
        assert!(!lent.opens(&token, &other) && !lent.opens("", &image));
        lent.end(&image);
        assert!(!lent.opens(&token, &image));
        assert_ne!(lent.lend(image), token);
    }
}
