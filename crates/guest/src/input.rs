//! A user's inputs on their way into a guest: in order, and each once (AMPhone, section 5.4).
//!
//! ```text
//! node                                       agent
//!   ready session=S .. inputs=1              it takes inputs
//!   input session=S from=F first=7 events=k30+,k30-,x6c730a ->
//!   <- taken session=S from=F number=9       the last one of F's that the guest has got
//! ```
//! Whoever types is a *source* with a random number of its own, and counts its inputs from 1. A node keeps them until they are taken, and
//! sends the next ones only then, so they are in order. An answer may be lost, with a connection, a node or a whole host, and what it was
//! for is then sent again: the agent leaves out what it has given. It knows that by the last number of each source, which it keeps in the
//! guest's memory ([`Taken`]). That travels with the machine, and goes back with it: a machine that goes on from an earlier moment gets
//! what it had not got at that moment, as far as a node still has it.
//!
//! Key codes are Linux' (`input-event-codes.h`). Places on the screen go from 0 to [`PLACE_MAX`], whatever its size.

use crate::line::{Line, LineError};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Most inputs in one message.
pub const INPUTS_MAX: usize = 64;
/// Most bytes of a text that is one input.
pub const TEXT_INPUT_BYTES_MAX: usize = 256;
/// The right and the lower edge of the screen; the others are at 0.
pub const PLACE_MAX: u16 = 32_767;
/// The largest code of a key: Linux knows no larger ones.
pub const KEY_MAX: u16 = 767;
/// How many fingers may touch the screen, each with its number below this.
pub const FINGERS_MAX: u8 = 10;
/// How many characters of a line inputs may take, so that it stays a line.
const CHARACTERS_MAX: usize = 1600;
/// How many sources an agent knows. It forgets the one that it has heard nothing of for longest, which has nothing under way by then: a
/// node has one message under way for each machine and source.
const SOURCES_MAX: usize = 256;

/// What a user does once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// A key goes down or up.
    Key {
        /// Its code.
        code: u16,
        /// Whether it goes down.
        down: bool,
    },
    /// The pointer is here, and these of its buttons are down.
    Pointer {
        /// From the left.
        x: u16,
        /// From above.
        y: u16,
        /// A bit each, from the lowest: left, middle, right; the wheel forward and back.
        buttons: u8,
    },
    /// A finger touches the screen, or leaves it.
    Touch {
        /// Which finger.
        finger: u8,
        /// Where it touches; `None` if it leaves.
        at: Option<(u16, u16)>,
    },
    /// Bytes typed on the serial console.
    Text(Vec<u8>),
}

/// Why something is no input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoInput;

impl fmt::Display for NoInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no input: a key has a code up to {KEY_MAX}, a place is at most {PLACE_MAX}, a finger's number below {FINGERS_MAX}, a text has \
             1 to {TEXT_INPUT_BYTES_MAX} bytes"
        )
    }
}

impl std::error::Error for NoInput {}

impl Input {
    /// Returns an error if this is beyond the bounds.
    pub fn check(&self) -> Result<(), NoInput> {
        let is_good = match self {
            Input::Key { code, .. } => (1..=KEY_MAX).contains(code),
            Input::Pointer { x, y, .. } => (*x).max(*y) <= PLACE_MAX,
            Input::Touch { finger, at } => {
                *finger < FINGERS_MAX && at.is_none_or(|(x, y)| x.max(y) <= PLACE_MAX)
            }
            Input::Text(bytes) => (1..=TEXT_INPUT_BYTES_MAX).contains(&bytes.len()),
        };
        if is_good { Ok(()) } else { Err(NoInput) }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Key { code, down } => write!(f, "k{code}{}", if *down { '+' } else { '-' }),
            Input::Pointer { x, y, buttons } => write!(f, "p{x}:{y}:{buttons}"),
            Input::Touch {
                finger,
                at: Some((x, y)),
            } => write!(f, "t{finger}:{x}:{y}"),
            Input::Touch { finger, at: None } => write!(f, "t{finger}-"),
            Input::Text(bytes) => {
                f.write_str("x")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for Input {
    type Err = NoInput;

    /// Parses what [`Input`] writes, in that one form.
    fn from_str(text: &str) -> Result<Input, NoInput> {
        let rest = text.get(1..).ok_or(NoInput)?;
        let input = match text.as_bytes()[0] {
            b'k' => match (rest.strip_suffix('+'), rest.strip_suffix('-')) {
                (Some(code), _) => Input::Key {
                    code: plain(code)?,
                    down: true,
                },
                (None, Some(code)) => Input::Key {
                    code: plain(code)?,
                    down: false,
                },
                (None, None) => return Err(NoInput),
            },
            b'p' => {
                let [x, y, buttons] = three(rest)?;
                Input::Pointer {
                    x: plain(x)?,
                    y: plain(y)?,
                    buttons: plain(buttons)?,
                }
            }
            b't' => match rest.strip_suffix('-') {
                Some(finger) => Input::Touch {
                    finger: plain(finger)?,
                    at: None,
                },
                None => {
                    let [finger, x, y] = three(rest)?;
                    Input::Touch {
                        finger: plain(finger)?,
                        at: Some((plain(x)?, plain(y)?)),
                    }
                }
            },
            b'x' => Input::Text(bytes_of(rest)?),
            _ => return Err(NoInput),
        };
        input.check().map(|()| input)
    }
}

fn three(text: &str) -> Result<[&str; 3], NoInput> {
    let mut parts = text.split(':');
    let found = [parts.next(), parts.next(), parts.next()];
    match (found, parts.next()) {
        ([Some(one), Some(two), Some(three)], None) => Ok([one, two, three]),
        _ => Err(NoInput),
    }
}

/// Reads a number in its one form: `+1` and `01` are numbers to `parse` as well.
fn plain<T: FromStr + ToString>(text: &str) -> Result<T, NoInput> {
    let number: Option<T> = text.parse().ok();
    number
        .filter(|number| number.to_string() == text)
        .ok_or(NoInput)
}

fn bytes_of(hex: &str) -> Result<Vec<u8>, NoInput> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(NoInput),
    };
    if !hex.len().is_multiple_of(2) || hex.len() > 2 * TEXT_INPUT_BYTES_MAX {
        return Err(NoInput);
    }
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| Ok(digit(pair[0])? * 16 + digit(pair[1])?))
        .collect()
}

/// Inputs of one source that follow on each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// The source.
    pub from: u64,
    /// The number of the first one; at least 1.
    pub first: u64,
    /// The inputs, of which there is one at least.
    pub events: Vec<Input>,
}

impl Inputs {
    /// Returns how many of these inputs one message can carry, from the first on.
    pub fn fit<'a>(events: impl Iterator<Item = &'a Input>) -> usize {
        let mut characters = 0;
        events
            .take(INPUTS_MAX)
            .take_while(|event| {
                characters += event.to_string().len() + 1;
                characters <= CHARACTERS_MAX
            })
            .count()
    }

    /// Returns the number of the last one.
    pub fn last(&self) -> u64 {
        self.first + self.events.len() as u64 - 1
    }

    /// Returns an error if this is beyond the bounds.
    pub fn check(&self) -> Result<(), NoInput> {
        let room = u64::MAX - INPUTS_MAX as u64;
        let is_good = !self.events.is_empty()
            && Inputs::fit(self.events.iter()) == self.events.len()
            && (1..=room).contains(&self.first);
        if !is_good {
            return Err(NoInput);
        }
        self.events.iter().try_for_each(Input::check)
    }

    pub(crate) fn add_to(&self, line: Line) -> Line {
        let events: Vec<String> = self.events.iter().map(Input::to_string).collect();
        line.with("from", format_args!("{:016x}", self.from))
            .with("first", self.first)
            .with("events", events.join(","))
    }

    pub(crate) fn of(line: &Line) -> Result<Inputs, LineError> {
        let bad = |NoInput| LineError::BadValue("events");
        let events = line.text("events")?.split(',').take(INPUTS_MAX + 1);
        let events: Result<Vec<Input>, NoInput> = events.map(str::parse).collect();
        let inputs = Inputs {
            from: number_of(line, "from")?,
            first: line.number("first")?,
            events: events.map_err(bad)?,
        };
        inputs.check().map_err(bad)?;
        Ok(inputs)
    }
}

/// Returns a number that is written as 16 hex digits.
pub(crate) fn number_of(line: &Line, key: &'static str) -> Result<u64, LineError> {
    let text = line.text(key)?;
    let good = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let number = u64::from_str_radix(text, 16).ok().filter(|_| good);
    number.ok_or(LineError::BadValue(key))
}

/// What the guest has got: the last number of each source. No I/O, no clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// For each source the last number, and when that was, counted in messages.
    last: BTreeMap<u64, (u64, u64)>,
    messages: u64,
}

impl Taken {
    /// Returns the number of the last input of a source that the guest has got; 0 if there was none.
    pub fn last(&self, from: u64) -> u64 {
        self.last.get(&from).map_or(0, |(last, _)| *last)
    }

    /// Leaves out what the guest has got already. `None` if that is all.
    pub fn new_of(&self, mut inputs: Inputs) -> Option<Inputs> {
        let last = self.last(inputs.from);
        if last >= inputs.first {
            let known = (last - inputs.first + 1).min(inputs.events.len() as u64);
            inputs.events.drain(..known as usize);
            inputs.first += known;
        }
        (!inputs.events.is_empty()).then_some(inputs)
    }

    /// Notes that the guest has got a source's inputs up to this number.
    pub fn got(&mut self, from: u64, number: u64) {
        self.messages += 1;
        let number = number.max(self.last(from));
        self.last.insert(from, (number, self.messages));
        if self.last.len() > SOURCES_MAX {
            let oldest = self.last.iter().min_by_key(|(_, (_, when))| *when);
            let oldest = oldest.map(|(from, _)| *from);
            if let Some(oldest) = oldest {
                self.last.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ToGuest, ToHost};

    fn text(bytes: &[u8]) -> Input {
        Input::Text(bytes.to_vec())
    }

    #[test]
    fn inputs_are_told_in_a_line_and_nothing_else_is_understood() {
        let events = vec![
            Input::Key {
                code: 30,
                down: true,
            },
            Input::Key {
                code: 30,
                down: false,
            },
            Input::Pointer {
                x: 0,
                y: PLACE_MAX,
                buttons: 1,
            },
            Input::Touch {
                finger: 1,
                at: Some((7, 8)),
            },
            Input::Touch {
                finger: 1,
                at: None,
            },
            text(b"ls\n"),
        ];
        let inputs = Inputs {
            from: 0xab,
            first: 7,
            events,
        };
        assert_eq!(inputs.last(), 12);
        let message = ToGuest::Input { session: 7, inputs };
        let line = message.encode();
        assert_eq!(
            String::from_utf8_lossy(&line),
            "input session=0000000000000007 from=00000000000000ab first=7 events=k30+,k30-,p0:32767:1,t1:7:8,t1-,x6c730a\n"
        );
        assert_eq!(ToGuest::decode(&line), Ok(message));
        for bad in [
            "",
            "k",
            "k0+",
            "k30",
            "k030+",
            "k+30+",
            "k768+",
            "p1:2",
            "p1:2:3:4",
            "p1:32768:0",
            "t10-",
            "t1:2",
            "x",
            "x6",
            "xAB",
            "xg0",
            "é",
            "k30+,",
            "y1",
        ] {
            let line = format!(
                "input session=0000000000000007 from=00000000000000ab first=7 events={bad}"
            );
            assert!(ToGuest::decode(line.as_bytes()).is_err(), "{bad}");
        }
        for bad in [
            "from=ab first=7",
            "from=00000000000000ab first=0",
            "first=1",
        ] {
            let line = format!("input session=0000000000000007 {bad} events=k30+");
            assert!(ToGuest::decode(line.as_bytes()).is_err(), "{bad}");
        }
        let taken = ToHost::Taken {
            session: 7,
            from: 0xab,
            number: 12,
            why: None,
        };
        assert_eq!(ToHost::decode(&taken.encode()), Ok(taken));
    }

    #[test]
    fn as_many_go_together_as_fit_into_a_line() {
        let longest = vec![text(&[0xff; TEXT_INPUT_BYTES_MAX]); 10];
        let count = Inputs::fit(longest.iter());
        assert!((1..10).contains(&count));
        let short = vec![text(b"\n"); 2 * INPUTS_MAX];
        assert_eq!(Inputs::fit(short.iter()), INPUTS_MAX);
        for (events, count) in [(longest, count), (short, INPUTS_MAX)] {
            let inputs = |count: usize| Inputs {
                from: u64::MAX,
                first: u64::MAX - INPUTS_MAX as u64,
                events: events[..count].to_vec(),
            };
            let message = ToGuest::Input {
                session: 1,
                inputs: inputs(count),
            };
            assert_eq!(ToGuest::decode(&message.encode()), Ok(message));
            assert!(inputs(count + 1).check().is_err());
        }
    }

    #[test]
    fn what_comes_again_is_left_out() {
        let mut taken = Taken::default();
        let inputs = |first, count| Inputs {
            from: 1,
            first,
            events: (0..count).map(|n| text(&[n])).collect(),
        };
        assert_eq!(taken.new_of(inputs(1, 3)), Some(inputs(1, 3)));
        taken.got(1, 2);
        let rest = taken.new_of(inputs(1, 3)).unwrap();
        assert_eq!((rest.first, rest.events), (3, vec![text(&[2])]));
        taken.got(1, 3);
        assert_eq!(taken.new_of(inputs(1, 3)), None);
        // what an answer says that comes late takes nothing back
        taken.got(1, 1);
        assert_eq!((taken.last(1), taken.last(2)), (3, 0));
        // what lies between was taken by a machine that has gone back since
        assert_eq!(taken.new_of(inputs(9, 1)), Some(inputs(9, 1)));
        // a source that says nothing is forgotten, and no other
        for from in 2..=SOURCES_MAX as u64 + 1 {
            taken.got(from, 5);
        }
        assert_eq!((taken.last(1), taken.last(2)), (0, 5));
    }
}
