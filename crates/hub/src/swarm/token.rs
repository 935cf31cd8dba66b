//! What the members of a swarm show each other: a keyed hash of the image and the users who may read it.
//!
//! It says nothing to those who don't have the hub's secret, and it is another one as soon as other users may read the image. Whoever
//! knows that of an earlier set of readers was one of them, so it does no harm that it is valid again once the set is the same.

use super::super::HubError;
use super::super::catalogue::Holding;
use super::super::disk::write_durably;
use floe_image::Hash;
use rand::TryRngCore;
use std::path::Path;

/// A secret that stays in the hub's folder.
pub(crate) struct Secret([u8; 32]);

impl Secret {
    /// Reads the secret of the hub in `dir`, or makes it. One that is damaged is replaced: members are told the new tokens.
    pub fn open(dir: &Path) -> Result<Secret, HubError> {
        let path = dir.join("swarm.secret");
        match std::fs::read(&path) {
            Ok(bytes) => match <[u8; 32]>::try_from(bytes) {
                Ok(secret) => return Ok(Secret(secret)),
                Err(_) => {
                    tracing::warn!(path = %path.display(), "the secret of swarms is damaged; a new one is made");
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(HubError::file("cannot read", &path)(error)),
        }
        let mut secret = [0; 32];
        rand::rngs::OsRng
            .try_fill_bytes(&mut secret)
            .map_err(|e| HubError::Options(format!("the kernel gives no random bytes: {e}")))?;
        write_durably(&path, &secret).map_err(HubError::file("cannot write", &path))?;
        Ok(Secret(secret))
    }

    /// Returns the token of those who read this copy of an image.
    pub fn token(&self, image: &Hash, holding: &Holding) -> Hash {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        hash.update(image.as_bytes());
        hash.update(&[u8::from(holding.public)]);
        if !holding.public {
            let mut readers: Vec<&str> = holding.readers.iter().map(|user| &**user).collect();
            readers.sort_unstable();
            readers.dedup();
            for user in std::iter::once(&*holding.owner).chain(readers) {
                hash.update(&(user.len() as u64).to_le_bytes());
                hash.update(user.as_bytes());
            }
        }
        Hash::from(*hash.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(public: bool, owner: &str, readers: &[&str]) -> Holding {
        Holding {
            owner: owner.into(),
            public,
            readers: readers.iter().map(|user| (*user).into()).collect(),
        }
    }

    #[test]
    fn each_hub_image_and_set_of_readers_has_a_token_of_its_own() {
        let (image, other) = (Hash([1; 32]), Hash([2; 32]));
        let of = |secret: u8, image: &Hash, holding: &Holding| {
            Secret([secret; 32]).token(image, holding)
        };
        let ann = copy(false, "ann", &["bob", "eve"]);
        let tokens = [
            of(1, &image, &ann),
            of(2, &image, &ann),
            of(1, &other, &ann),
            of(1, &image, &copy(false, "ann", &["bob"])),
            of(1, &image, &copy(false, "ann", &["bobeve"])),
            of(1, &image, &copy(false, "annbob", &["eve"])),
            of(1, &image, &copy(false, "eve", &["ann", "bob"])),
            of(1, &image, &copy(true, "ann", &[])),
        ];
        let different: std::collections::HashSet<&Hash> = tokens.iter().collect();
        assert_eq!(different.len(), tokens.len());
        assert_eq!(
            of(1, &image, &copy(false, "ann", &["eve", "bob"])),
            tokens[0]
        );
        // a public image is everybody's, whoever holds it
        assert_eq!(of(1, &image, &copy(true, "bob", &["eve"])), tokens[7]);
    }

    #[test]
    fn the_secret_is_made_once_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let first = Secret::open(dir.path()).unwrap().0;
        assert_eq!(Secret::open(dir.path()).unwrap().0, first);
        let path = dir.path().join("swarm.secret");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "short").unwrap();
        let second = Secret::open(dir.path()).unwrap().0;
        assert!(second != first && Secret::open(dir.path()).unwrap().0 == second);
        assert_ne!(second, [0; 32]);
    }
}
