//! A file on its way through a console that may lose characters: numbered lines with checksums, each of which the other end
//! acknowledges. No I/O, no clock.
//!
//! ```text
//! P 17 ba7816bf... aGVsbG8...     ->    <- floe-ok 17, or floe-no 17: that one again
//! ```

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// Bytes of a file in one line: with base64 and its head it is below the 4095 that a terminal's line holds.
const PIECE_BYTES: usize = 2250;
/// How often a piece is sent before this is given up.
const TRIES_MAX: u32 = 8;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Write this line.
    Write(String),
    /// Wait for more of what the console says.
    Wait,
    /// All of it has arrived.
    Done,
    /// The console has swallowed the same piece again and again.
    GiveUp,
}

/// A file that is being sent.
pub struct Sending {
    bytes: Vec<u8>,
    next: usize,
    tries: u32,
    /// Pieces that were sent more than once.
    pub repeated: u32,
}

impl Sending {
    /// Makes the sender of a file's bytes.
    pub fn new(bytes: Vec<u8>) -> Sending {
        Sending {
            bytes,
            next: 0,
            tries: 0,
            repeated: 0,
        }
    }

    /// Returns how many pieces there are.
    pub fn len(&self) -> usize {
        self.bytes.len().div_ceil(PIECE_BYTES)
    }

    /// Returns how many pieces have arrived.
    pub fn arrived(&self) -> usize {
        self.next
    }

    /// Returns the first line.
    pub fn begin(&mut self) -> Step {
        self.line()
    }

    fn line(&mut self) -> Step {
        let Some(piece) = self.bytes.chunks(PIECE_BYTES).nth(self.next) else {
            return Step::Done;
        };
        self.tries += 1;
        if self.tries > TRIES_MAX {
            return Step::GiveUp;
        }
        self.repeated += u32::from(self.tries > 1);
        Step::Write(format!(
            "P {} {} {}\n",
            self.next,
            checksum(piece),
            BASE64_STANDARD.encode(piece)
        ))
    }

    /// Takes a line of the console.
    pub fn heard(&mut self, line: &str) -> Step {
        let mut words = line.trim().rsplit(' ');
        let (number, verb) = (words.next(), words.next());
        let number: Option<usize> = number.and_then(|word| word.parse().ok());
        match (verb, number) {
            (Some("floe-ok"), Some(number)) if number == self.next => {
                self.next += 1;
                self.tries = 0;
                self.line()
            }
            (Some("floe-no"), Some(number)) if number == self.next => self.line(),
            // an answer to a repetition, or what somebody else has written
            _ => Step::Wait,
        }
    }

    /// The console has been silent for long.
    pub fn silent(&mut self) -> Step {
        match self.line() {
            // ends what is left of a line whose end was lost
            Step::Write(line) => Step::Write(format!("\n{line}")),
            other => other,
        }
    }
}

/// Returns the checksum as `sha256sum` prints it.
pub fn checksum(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn checksums_are_those_of_sha256sum_and_a_line_is_one_that_a_terminal_takes() {
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(checksum(b"abc"), of_abc);
        let longest = Sending::new(vec![0xff; 9 * PIECE_BYTES]).begin();
        assert!(matches!(longest, Step::Write(line) if line.len() < 4000));
    }

    #[test]
    fn a_console_that_says_nothing_is_given_up() {
        let mut sending = Sending::new(vec![1; 10]);
        sending.begin();
        let steps: Vec<Step> = (0..TRIES_MAX).map(|_| sending.silent()).collect();
        assert_eq!(steps.last(), Some(&Step::GiveUp));
        assert_eq!(sending.heard("floe-ok 5"), Step::Wait);
    }

    proptest! {
        /// A shell that does what the real one is told to, behind a console that loses characters and whole answers.
        #[test]
        fn all_arrives_whatever_the_console_loses(
            length in 0..20_000usize, losses in prop::collection::vec(0..6u8, 1..200),
        ) {
            let bytes: Vec<u8> = (0..length).map(|n| ((n * 31) >> 3) as u8).collect();
            let mut sending = Sending::new(bytes.clone());
            let mut got = Vec::new();
            let mut step = sending.begin();
            let mut lost = losses.iter().cycle();
            let (mut row, mut wanted) = (0, 0);
            loop {
                let line = match step {
                    Step::Write(line) => line,
                    Step::Done => break,
                    Step::Wait => {
                        step = sending.silent();
                        continue;
                    }
                    Step::GiveUp => panic!("it was not lost that often"),
                };
                // never the same piece lost so often that it is given up
                let loss = if row > 2 { 5 } else { *lost.next().unwrap() };
                row = if loss < 3 { row + 1 } else { 0 };
                let mut words = line.trim().split(' ').skip(1);
                let number: usize = words.next().unwrap().parse().unwrap();
                let piece = &bytes[number * PIECE_BYTES..((number + 1) * PIECE_BYTES).min(length)];
                prop_assert_eq!(words.next(), Some(&checksum(piece)[..]));
                if loss == 0 {
                    step = sending.silent(); // the line was lost
                } else if loss == 1 {
                    step = sending.heard(&format!("floe-no {wanted}"));
                } else {
                    if number == wanted {
                        got.extend_from_slice(piece);
                        wanted += 1;
                    }
                    step = match loss {
                        2 => sending.silent(), // the answer was lost
                        _ => sending.heard(&format!("prompt# floe-ok {number}\r")),
                    };
                }
            }
            prop_assert!(got == bytes);
        }
    }
}
