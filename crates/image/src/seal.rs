//! Authenticated encryption of what hosts send each other over UDP, and of what lies with a host that must not read it:
//! ChaCha20-Poly1305, with a separate key for each sender.
//!
//! A nonce must never be used twice with one key; otherwise both datagrams could be read, and others forged. So no two senders
//! have the same key, and each numbers its own datagrams:
//! - a sender draws 64 random bits when it starts, in addition to its number in the group, and derives its key from the shared
//!   secret and these 128 bits. A program that was restarted, or whose clock was set back, is another sender;
//! - each sender's nonce is a counter, and [`Sealer`] refuses a counter that doesn't grow.
//!
//! The header of a datagram, which has the sender and the counter, is authenticated but not encrypted.
//!
//! What lies somewhere ([`RestKey`]) is in pieces, each with a sender of its own, which is a keyed hash of what the piece says, and one
//! number. So a nonce comes twice only with the same bytes.

use crate::FormatError;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Bytes that sealing adds after the content.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes that distinguish the senders that share a secret.
pub(crate) const SENDER_BYTES: usize = 16;

/// A secret that several hosts share.
#[derive(Clone, Copy)]
pub(crate) struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Derives the secret for one purpose from some text; each purpose gives another secret.
    pub fn derive(purpose: &str, text: &str) -> Secret {
        Secret(blake3::derive_key(purpose, text.as_bytes()))
    }

    fn key_of(&self, sender: &[u8; SENDER_BYTES]) -> LessSafeKey {
        let key = blake3::keyed_hash(&self.0, sender);
        let unbound = UnboundKey::new(&CHACHA20_POLY1305, key.as_bytes());
        LessSafeKey::new(unbound.expect("a BLAKE3 hash has the length of this cipher's keys"))
    }

    /// Decrypts `sealed`, which follows `header`. Returns `None` if the sender didn't have this secret, or anything was
    /// changed.
    pub fn open(
        &self,
        sender: &[u8; SENDER_BYTES],
        counter: u64,
        header: &[u8],
        sealed: &[u8],
    ) -> Option<Vec<u8>> {
        let mut content = sealed.to_vec();
        let opened =
            self.key_of(sender)
                .open_in_place(nonce(counter), Aad::from(header), &mut content);
        let length = opened.ok()?.len();
        content.truncate(length);
        Some(content)
    }
}

/// A sender, which numbers and encrypts its datagrams.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: LessSafeKey,
    last: u64,
}

impl Sealer {
    /// Makes a sender. `sender` must never have been used with this secret; at least half of it must be random.
    pub fn new(secret: &Secret, sender: &[u8; SENDER_BYTES]) -> Sealer {
        Sealer {
            key: secret.key_of(sender),
            last: 0,
        }
    }

    /// Returns `header` with the encrypted content and its tag; `None` if the counter isn't greater than the last one.
    pub fn seal(&mut self, counter: u64, header: &[u8], content: &[u8]) -> Option<Vec<u8>> {
        if counter <= self.last {
            return None;
        }
        self.last = counter;
        let mut out = Vec::with_capacity(header.len() + content.len() + TAG_BYTES);
        out.extend_from_slice(header);
        out.extend_from_slice(content);
        let (header, content) = out.split_at_mut(header.len());
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(counter), Aad::from(&*header), content)
            .ok()?;
        out.extend_from_slice(tag.as_ref());
        Some(out)
    }
}

/// What [`RestKey`]'s keys are derived for.
const REST_CONTEXT: &str = "floe sealed at rest 1";
const REST_SENDERS_CONTEXT: &str = "floe sealed at rest, senders 1";
const REST_WHAT: &str = "sealed piece";
/// The number of each sealed piece among those of its sender, which has no other.
const REST_COUNTER: u64 = 1;
/// By how many bytes [`RestKey::seal`] makes a piece longer.
pub const REST_BYTES: usize = SENDER_BYTES + TAG_BYTES;

/// A key for what lies with another host, which is not to read it: a machine that is synced there, sealed.
///
/// Nothing is drawn at random, so that the same bytes are sealed to the same bytes, and need not be sent and stored again. Who has not the
/// key sees which pieces are equal, and how long they are.
#[derive(Clone, Copy, Debug)]
pub struct RestKey {
    seal: Secret,
    senders: Secret,
}

impl RestKey {
    /// Derives the key from a secret text.
    pub fn of(text: &str) -> RestKey {
        RestKey {
            seal: Secret::derive(REST_CONTEXT, text),
            senders: Secret::derive(REST_SENDERS_CONTEXT, text),
        }
    }

    /// Returns a piece as it may lie there. It is [`REST_BYTES`] longer.
    pub fn seal(&self, content: &[u8]) -> Vec<u8> {
        let hash = blake3::keyed_hash(&self.senders.0, content);
        let mut sender = [0; SENDER_BYTES];
        sender.copy_from_slice(&hash.as_bytes()[..SENDER_BYTES]);
        let sealed = Sealer::new(&self.seal, &sender).seal(REST_COUNTER, &sender, content);
        sealed.expect("a sealer's first number is greater than 0, and no piece in memory is too long for this cipher")
    }

    /// Returns what a piece says. Fails if it was sealed with another key, or if anything of it was changed.
    pub fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, FormatError> {
        let Some((sender, rest)) = sealed.split_first_chunk::<SENDER_BYTES>() else {
            return Err(FormatError::invalid(REST_WHAT, "it has no seal"));
        };
        let opened = self.seal.open(sender, REST_COUNTER, sender, rest);
        opened.ok_or_else(|| {
            FormatError::invalid(
                REST_WHAT,
                "its seal is wrong: it was sealed with another key, or has been changed",
            )
        })
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Returns the error for something that could not be opened.
pub(crate) fn not_a_member(what: &'static str) -> FormatError {
    FormatError::invalid(
        what,
        "its seal is wrong: the sender is no member of this group",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_was_used_seals_nothing() {
        let secret = Secret::derive("a test", "token");
        let mut sealer = Sealer::new(&secret, &[1; 16]);
        let first = sealer.seal(1, b"head", b"content").unwrap();
        assert!(sealer.seal(1, b"head", b"other").is_none());
        assert!(sealer.seal(0, b"head", b"other").is_none());
        assert!(sealer.seal(7, b"head", b"other").is_some());
        assert!(sealer.seal(6, b"head", b"other").is_none());
        assert_eq!(
            secret.open(&[1; 16], 1, b"head", &first[4..]).unwrap(),
            b"content"
        );
        // Another sender, another counter, another header, another purpose.
        assert!(secret.open(&[2; 16], 1, b"head", &first[4..]).is_none());
        assert!(secret.open(&[1; 16], 2, b"head", &first[4..]).is_none());
        assert!(secret.open(&[1; 16], 1, b"hEad", &first[4..]).is_none());
        let other = Secret::derive("another test", "token");
        assert!(other.open(&[1; 16], 1, b"head", &first[4..]).is_none());
        assert!(secret.open(&[1; 16], 1, b"head", b"short").is_none());
    }

    #[test]
    fn a_sender_that_was_restarted_has_another_key() {
        let secret = Secret::derive("a test", "token");
        let seal = |sender: u8| {
            let mut sealer = Sealer::new(&secret, &[sender; 16]);
            sealer.seal(1, b"", b"the same content").unwrap()
        };
        assert_ne!(seal(1), seal(2));
        assert!(!seal(1).windows(4).any(|w| w == b"same"));
    }
    #[test]
    fn a_piece_at_rest_opens_with_its_key_alone_and_as_it_is_alone() {
        let (key, other) = (RestKey::of("a key"), RestKey::of("another key"));
        for content in [&b""[..], b"content", &[0; 5000]] {
            let sealed = key.seal(content);
            assert_eq!(sealed.len(), content.len() + REST_BYTES);
            assert_eq!(key.open(&sealed).unwrap(), content);
            assert_eq!(key.seal(content), sealed, "the same bytes lie there once");
            assert_ne!(other.seal(content), sealed);
            assert!(other.open(&sealed).is_err());
            for length in [0, SENDER_BYTES - 1, SENDER_BYTES, sealed.len() - 1] {
                assert!(key.open(&sealed[..length]).is_err(), "{length}");
            }
            for at in [0, SENDER_BYTES, sealed.len() - 1] {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                assert!(key.open(&changed).is_err(), "{at}");
            }
        }
        let (one, two) = (key.seal(b"content 1"), key.seal(b"content 2"));
        assert_ne!(one[..SENDER_BYTES], two[..SENDER_BYTES]);
        assert!(!one.windows(7).any(|part| part == b"content"));
    }
}
