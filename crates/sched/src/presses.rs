//! Finds in the bytes of a VNC client the keys and buttons that go down: a person's inputs ([`crate::classify::Classifier::input`]).
//!
//! [`Presses`] is given what a client sends (RFB, RFC 6143), from its first byte on and in pieces of any length, and looks at as much of it as
//! it needs to find the next message: never at which key it was, nor at where the pointer is. A touch comes as a button. A
//! clipboard's text is no input, because clients send it by themselves whenever it changes. The bytes are a stranger's: what is kept of them
//! is a dozen bytes, and after a message that isn't known nothing counts any more, since nobody knows where the next one begins. (QEMU ends the
//! connection then.)

/// Most bytes of a message that tell what it is and where it ends.
const HEAD_BYTES_MAX: usize = 12;

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// `RFB 003.008` and a line's end (7.1.1).
    #[default]
    Version,
    /// The way of authentication that the client has chosen (7.1.2).
    Security,
    /// Whether others may look as well (7.3.1).
    Init,
    /// A message (7.5).
    Message,
    /// What nobody knows how to read.
    Unknown,
}

/// What the beginning of a message tells.
enum Head {
    /// Too little.
    More,
    /// All that is wanted: whether something goes down, and how many bytes are still to come of it.
    Whole { press: bool, rest: u64 },
    /// It is no message of a client.
    Unknown,
}

/// Finds the keys and buttons that go down in what a VNC client sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presses {
    next: Next,
    /// The beginning of what comes next, as far as it is here.
    head: [u8; HEAD_BYTES_MAX],
    length: usize,
    /// Bytes until the next beginning.
    rest: u64,
    /// The pointer's buttons that are down, a bit each.
    buttons: u8,
}

impl Presses {
    /// Returns whether a key or a button goes down in the client's next bytes.
    pub fn are_in(&mut self, mut bytes: &[u8]) -> bool {
        let mut pressed = false;
        while self.next != Next::Unknown && !bytes.is_empty() {
            if self.rest > 0 {
                let here = self.rest.min(bytes.len() as u64);
                bytes = &bytes[here as usize..];
                self.rest -= here;
                continue;
            }
            self.head[self.length] = bytes[0];
            self.length += 1;
            bytes = &bytes[1..];
            pressed |= self.step();
        }
        pressed
    }

    /// Returns whether the last bytes ended within a message, whose rest is still to come.
    pub fn is_within(&self) -> bool {
        self.next == Next::Message && (self.rest > 0 || self.length > 0)
    }

    /// Looks whether the beginning is long enough. Returns whether something goes down by it.
    fn step(&mut self) -> bool {
        let head = &self.head[..self.length];
        let found = match self.next {
            Next::Version => version(head),
            // without a password nothing follows, and QEMU has none
            Next::Security if head == [SECURITY_NONE] => Some(Next::Init),
            Next::Security | Next::Unknown => Some(Next::Unknown),
            Next::Init => Some(Next::Message),
            Next::Message => return self.message(),
        };
        if let Some(next) = found {
            self.next = next;
            self.length = 0;
        }
        false
    }

    fn message(&mut self) -> bool {
        match message(&self.head[..self.length], &mut self.buttons) {
            Head::More => false,
            Head::Whole { press, rest } => {
                self.length = 0;
                self.rest = rest;
                press
            }
            Head::Unknown => {
                self.next = Next::Unknown;
                false
            }
        }
    }
}

/// The way of authentication that is none.
const SECURITY_NONE: u8 = 1;

/// Returns what follows on a client's version, once it is here. Before 3.7 the server chose the authentication.
fn version(head: &[u8]) -> Option<Next> {
    if head.len() < b"RFB 003.008\n".len() {
        return None;
    }
    Some(match head {
        b"RFB 003.003\n" | b"RFB 003.004\n" | b"RFB 003.005\n" => Next::Init,
        b"RFB 003.007\n" | b"RFB 003.008\n" => Next::Security,
        _ => Next::Unknown,
    })
}

/// Looks at the beginning of a message: those of RFC 6143, and those of the extensions that QEMU has or clients may try.
fn message(head: &[u8], buttons: &mut u8) -> Head {
    let passed = |rest: u64| Head::Whole { press: false, rest };
    match *head {
        // the pixels' format
        [0, ..] => passed(19),
        // encodings, four bytes each
        [2, _, high, low] => passed(4 * u64::from(u16::from_be_bytes([high, low]))),
        // a wish for a picture, or for all that come
        [3 | 150, ..] => passed(9),
        [4, down] => Head::Whole {
            press: down != 0,
            rest: 6,
        },
        [5, down] => {
            let press = down & !*buttons != 0;
            *buttons = down;
            Head::Whole { press, rest: 4 }
        }
        // a clipboard's text; a negative length is that of an extension's message
        [6, _, _, _, a, b, c, d] => {
            let length = i32::from_be_bytes([a, b, c, d]);
            passed(u64::from(length.unsigned_abs()))
        }
        // a fence, with a few bytes of the client's own
        [248, _, _, _, _, _, _, _, length] => passed(u64::from(length)),
        // the size that the screen is to have, with so many parts
        [251, _, _, _, _, _, parts] => passed(1 + 16 * u64::from(parts)),
        // xvp
        [252, ..] => passed(3),
        // QEMU's own: a key, with whether it goes down in two bytes; sound on, off, or how it is wanted
        [255, 0, high, low] => Head::Whole {
            press: (high, low) != (0, 0),
            rest: 8,
        },
        [255, 1, 0, 2] => passed(6),
        [255, 1, 0, _] => passed(0),
        [2 | 6 | 248 | 251, ..] | [4 | 5] => Head::More,
        [255] | [255, 0 | 1] | [255, 0 | 1, _] => Head::More,
        _ => Head::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client says first.
    const HELLO: &[u8] = b"RFB 003.008\n\x01\x01";

    /// Returns for each piece whether something goes down in it.
    fn pressed(pieces: &[&[u8]]) -> Vec<bool> {
        let mut presses = Presses::default();
        pieces.iter().map(|piece| presses.are_in(piece)).collect()
    }

    #[test]
    fn a_press_counts_once_and_neither_its_end_nor_a_movement() {
        let sent: [(&[u8], bool); 17] = [
            (HELLO, false),
            (
                b"\x00\0\0\0\x20\x18\x00\x01\0\xff\0\xff\0\xff\x10\x08\x00\0\0\0",
                false,
            ),
            (b"\x02\0\0\x02\0\0\0\x05\xff\xff\xff\x04", false),
            (b"\x03\x01\0\0\0\0\x04\0\x03\0", false),
            (b"\x04\x01\0\0\0\0\0a", true),
            (b"\x04\x00\0\0\0\0\0a", false),
            (b"\x05\x00\0\x01\0\x01", false),
            (b"\x05\x01\0\x01\0\x01", true),
            (b"\x05\x01\0\x02\0\x02", false),
            // the other button, while the first one is still down
            (b"\x05\x05\0\x02\0\x02", true),
            (b"\x05\x00\0\x02\0\x02", false),
            (
                b"\x06\0\0\0\0\0\0\x08\x04\x01\x04\x01\x04\x01\x04\x01",
                false,
            ),
            (b"\xff\x00\x00\x01\0\0\0a\0\0\0\x1e", true),
            (b"\xff\x00\x00\x00\0\0\0a\0\0\0\x1e", false),
            (
                b"\xff\x01\x00\x02\x01\x02\0\0\xac\x44\xff\x01\x00\x00",
                false,
            ),
            (b"\xfb\0\x04\0\x03\0\x01\0abcdefghijklmnop", false),
            (b"\x04\x01\0\0\0\0\0b", true),
        ];
        let (pieces, wanted): (Vec<&[u8]>, Vec<bool>) = sent.into_iter().unzip();
        assert_eq!(pressed(&pieces), wanted);
        // cut anywhere, and all at once, it is the same
        let all: Vec<u8> = pieces.concat();
        let bytes: Vec<&[u8]> = all.chunks(1).collect();
        let number = pressed(&bytes).into_iter().filter(|down| *down).count();
        assert_eq!(number, wanted.iter().filter(|down| **down).count());
        assert_eq!(pressed(&[&all]), [true]);
    }

    #[test]
    fn each_version_that_qemu_takes_begins_in_its_way() {
        let key = b"\x04\x01\0\0\0\0\0a";
        for hello in [
            b"RFB 003.003\n\x01".as_slice(),
            b"RFB 003.005\n\x00",
            b"RFB 003.007\n\x01\x00",
            HELLO,
        ] {
            assert_eq!(pressed(&[hello, key]), [false, true]);
        }
    }

    #[test]
    fn it_is_known_whether_a_message_is_whole() {
        let mut presses = Presses::default();
        let sent: [(&[u8], bool); 8] = [
            (HELLO, false),
            (b"\x06\0\0\0", true),
            (b"\0\0\0\x05", true),
            (b"hell", true),
            (b"o", false),
            (b"\x04\x01\0", true),
            (b"\0\0\0\0a", false),
            (b"\xf0", false),
        ];
        for (bytes, within) in sent {
            presses.are_in(bytes);
            assert_eq!(presses.is_within(), within, "{bytes:?}");
        }
    }

    #[test]
    fn after_what_is_not_known_nothing_counts() {
        let key = b"\x04\x01\0\0\0\0\0a".as_slice();
        for strange in [
            b"RFB 004.000\n\x01\x01".as_slice(),
            b"GET / HTTP/1.1\r\n",
            b"RFB 003.008\n\x02\x01", // a password
            &[HELLO, &[1]].concat(),
            &[HELLO, &[255, 7]].concat(),
        ] {
            assert_eq!(pressed(&[strange, key, key]), [false; 3], "{strange:?}");
        }
        // a text that is as long as can be is waited for, whatever it holds
        let text = [HELLO, b"\x06\0\0\0\x80\0\0\0"].concat();
        assert_eq!(pressed(&[&text, key, key]), [false; 3]);
    }
}
