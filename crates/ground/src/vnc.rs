//! What a VNC client sends (RFB, RFC 6143), message by message, and which way each goes: to QEMU, or into what is kept for the guest. No
//! I/O and no clock.
//!
//! QEMU drops inputs while its machine stands still, and loses what its guest has not taken yet when it ends. So keys and the pointer's
//! buttons are kept as long as that may be, if somebody gives them to the guest later ([`Stand::kept`]). Everything else is QEMU's alone,
//! and is held here until the machine goes on: the pointer's moves, of which the last is enough, a clipboard's text, and keys of which
//! nothing tells where they are on a keyboard. What went down goes up by the same way, or it would stay down on one of two keyboards or
//! pointers.
//!
//! The bytes are a stranger's: of a message some ten bytes are looked at, and what is held has bounds.

use floe_guest::input::Input;
use floe_machine::key_of;
use floe_sched::Presses;
use std::collections::{BTreeMap, VecDeque};

/// RFB's message types (7.5) of keys, of the pointer, of a text to paste, and of what only QEMU knows: those with which a user does
/// something.
const KEY: u8 = 4;
const POINTER: u8 = 5;
const TEXT: u8 = 6;
const QEMU: u8 = 255;
/// The buttons that guests know: left, middle, right, the wheel forward and back.
const BUTTONS: u8 = 0x1f;
/// How many messages are held for a machine that stands still, and how many bytes; further ones are dropped, but for keys that go up.
const HELD_MAX: usize = 1024;
/// See [`HELD_MAX`].
const HELD_BYTES_MAX: usize = 1 << 20;

/// The keys of an American keyboard that write something, without Shift and with it, from the first to the last of each row, with Linux'
/// code of the first. QEMU takes clients for users of one that don't tell where a key is.
const ROWS: [(&str, &str, u16); 5] = [
    ("1234567890-=", "!@#$%^&*()_+", 2),
    ("qwertyuiop[]", "QWERTYUIOP{}", 16),
    ("asdfghjkl;'`", "ASDFGHJKL:\"~", 30),
    ("\\zxcvbnm,./", "|ZXCVBNM<>?", 43),
    (" ", " ", 57),
];
/// Other keys, from the first to the last of a row: X11's numbers, and Linux' code of the first.
const NAMED: [(u32, u32, u16); 23] = [
    (0xfe03, 0xfe03, 100), // the right Alt as a third level
    (0xff08, 0xff09, 14),  // back, Tab
    (0xff0d, 0xff0d, 28),  // Enter
    (0xff1b, 0xff1b, 1),   // Esc
    (0xff50, 0xff50, 102), // to the beginning
    (0xff51, 0xff51, 105), // left
    (0xff52, 0xff52, 103), // up
    (0xff53, 0xff53, 106), // right
    (0xff54, 0xff54, 108), // down
    (0xff55, 0xff55, 104), // a page up
    (0xff56, 0xff56, 109), // a page down
    (0xff57, 0xff57, 107), // to the end
    (0xff63, 0xff63, 110), // Insert
    (0xffbe, 0xffc7, 59),  // F1 to F10
    (0xffc8, 0xffc9, 87),  // F11, F12
    (0xffe1, 0xffe1, 42),  // Shift
    (0xffe2, 0xffe2, 54),
    (0xffe3, 0xffe3, 29), // Ctrl
    (0xffe4, 0xffe4, 97),
    (0xffe5, 0xffe5, 58), // Caps Lock
    (0xffe9, 0xffe9, 56), // Alt
    (0xffea, 0xffea, 100),
    (0xffff, 0xffff, 111), // Delete
];

/// How a user's inputs fare just now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stand {
    /// QEMU drops them: its machine stands still.
    pub still: bool,
    /// Those that the guest can get later are kept for it.
    pub kept: bool,
    /// So are the pointer's buttons: where it is can be told, whatever the size of the screen.
    pub pointer: bool,
}

/// What a user has done that is kept for the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// An input as it is.
    Input(Input),
    /// The pointer is at this point of the screen, counted from the left and from above, and these of its buttons are down.
    Points {
        /// From the left.
        x: u16,
        /// From above.
        y: u16,
        /// A bit each, as in [`Input::Pointer`].
        buttons: u8,
    },
}

/// What is done with what a client has sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What is kept for the guest.
    pub keep: Vec<Done>,
    /// Bytes for QEMU.
    pub pass: Vec<u8>,
    /// Whether a key or a button goes down by those.
    pub pressed: bool,
}

/// What becomes of a message that has begun: its rest goes the same way.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Begun {
    #[default]
    Passed,
    /// It is short, and looked at as a whole.
    Collected,
    Held,
    Dropped,
}

/// The way on which a key or a button went down.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Passed,
    Kept,
}

impl Way {
    fn of(kept: bool) -> Way {
        match kept {
            true => Way::Kept,
            false => Way::Passed,
        }
    }
}

/// What becomes of a short message.
enum Fate {
    Passed,
    /// The same, also if there is no room: it ends what went down by that way.
    Up,
    Kept(Done),
    /// Nothing: what follows says all of it.
    Over,
}

/// What a short message says.
enum Said {
    Key { code: u16, down: bool },
    Pointer { x: u16, y: u16, buttons: u8 },
}

/// One client's side of its connection.
#[derive(Default)]
pub struct Client {
    /// Where messages begin and end.
    arriving: Presses,
    begun: Begun,
    /// The message that is being collected.
    collected: Vec<u8>,
    /// What waits until the machine goes on, in the order in which it came.
    held: VecDeque<Vec<u8>>,
    held_bytes: usize,
    /// The keys that are down.
    down: BTreeMap<u16, Way>,
    /// The pointer's buttons that are down, and the way on which the first of them went down.
    buttons: u8,
    pointing: Way,
    /// Where the pointer was last.
    at: (u16, u16),
    /// What goes down by what is passed on.
    passed: Presses,
}

impl Client {
    /// Takes the client's next bytes.
    pub fn takes(&mut self, bytes: &[u8], stand: Stand) -> Step {
        let mut step = Step::default();
        for byte in bytes {
            if !self.arriving.is_within() {
                self.begun = self.begin(*byte, stand);
            }
            self.arriving.are_in(&[*byte]);
            match self.begun {
                Begun::Passed => step.pass.push(*byte),
                Begun::Collected => self.collected.push(*byte),
                Begun::Held => self.extend(*byte),
                Begun::Dropped => {}
            }
            if self.begun == Begun::Collected && !self.arriving.is_within() {
                self.end(stand, &mut step);
            }
        }
        step.pressed = self.passed.are_in(&step.pass);
        step
    }

    /// Whether something is held for a machine that stands still.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The machine runs: returns what is done with the next message that was held. Nothing if that would come in the middle of another one.
    pub fn goes_on(&mut self) -> Step {
        let whole = match (self.arriving.is_within(), self.begun) {
            (true, Begun::Passed) => 0,
            (true, Begun::Held) => self.held.len().saturating_sub(1),
            _ => self.held.len(),
        };
        let next = (whole > 0).then(|| self.held.pop_front()).flatten();
        let pass = next.unwrap_or_default();
        self.held_bytes -= pass.len();
        Step {
            pressed: self.passed.are_in(&pass),
            keep: Vec::new(),
            pass,
        }
    }

    /// The client is gone: returns what is kept so that none of its keys and buttons stays down. QEMU does the same for what was passed on
    /// to it.
    pub fn leaves(&mut self) -> Vec<Done> {
        let down = std::mem::take(&mut self.down).into_iter();
        let kept = down.filter(|(_, way)| *way == Way::Kept);
        let up = |(code, _): (u16, Way)| Done::Input(Input::Key { code, down: false });
        let mut done: Vec<Done> = kept.map(up).collect();
        let (x, y) = self.at;
        if std::mem::take(&mut self.buttons) != 0 && self.pointing == Way::Kept {
            done.push(Done::Points { x, y, buttons: 0 });
        }
        done
    }

    fn begin(&mut self, kind: u8, stand: Stand) -> Begun {
        match kind {
            KEY | POINTER | QEMU => Begun::Collected,
            TEXT if self.holds(stand) => match self.held.len() < HELD_MAX {
                true => {
                    self.held.push_back(Vec::new());
                    Begun::Held
                }
                false => Begun::Dropped,
            },
            _ => Begun::Passed,
        }
    }

    /// Whether what is QEMU's alone is held now: nothing overtakes what is.
    fn holds(&self, stand: Stand) -> bool {
        stand.still || self.is_holding()
    }

    /// A short message is whole.
    fn end(&mut self, stand: Stand, step: &mut Step) {
        let message = std::mem::take(&mut self.collected);
        let full = self.holds(stand) && self.is_full(message.len());
        let fate = match said_in(&message) {
            Some(Said::Key { code, down }) => self.key(code, down, stand, full),
            Some(Said::Pointer { x, y, buttons }) => self.pointer(x, y, buttons, stand),
            None => Fate::Passed,
        };
        match fate {
            Fate::Kept(done) => step.keep.push(done),
            Fate::Over => {}
            // what has a single byte is no input: it belongs to the beginning of a connection, or is QEMU's to refuse
            Fate::Passed if message.len() > 1 && self.holds(stand) => self.hold(message, full),
            Fate::Up if self.holds(stand) => self.hold(message, false),
            Fate::Passed | Fate::Up => step.pass.extend(message),
        }
    }

    /// What becomes of a key; `full`: there is no room to hold it.
    fn key(&mut self, code: u16, down: bool, stand: Stand, full: bool) -> Fate {
        let before = self.down.get(&code).copied();
        let way = before.unwrap_or(Way::of(stand.kept));
        match (way, down) {
            // what is dropped does not go down, and so does not have to go up
            (Way::Passed, true) if full => return Fate::Over,
            (_, true) => self.down.insert(code, way),
            (_, false) => self.down.remove(&code),
        };
        match way {
            Way::Kept => Fate::Kept(Done::Input(Input::Key { code, down })),
            Way::Passed if before.is_some() && !down => Fate::Up,
            Way::Passed => Fate::Passed,
        }
    }

    fn pointer(&mut self, x: u16, y: u16, buttons: u8, stand: Stand) -> Fate {
        let before = std::mem::replace(&mut self.buttons, buttons);
        self.at = (x, y);
        if before == 0 {
            self.pointing = Way::of(stand.pointer);
        }
        match (before, buttons) {
            _ if self.pointing == Way::Passed => Fate::Passed,
            // it moves, and has no button down
            (0, 0) => Fate::Passed,
            // where a button goes up again says how far it was drawn
            _ if before == buttons => Fate::Over,
            _ => Fate::Kept(Done::Points { x, y, buttons }),
        }
    }

    /// Whether there is no room for so many more bytes.
    fn is_full(&self, bytes: usize) -> bool {
        self.held.len() >= HELD_MAX || self.held_bytes + bytes > HELD_BYTES_MAX
    }

    fn hold(&mut self, input: Vec<u8>, full: bool) {
        // type and buttons are compared: while the pointer only moves, its last position is enough
        let moved = |last: &Vec<u8>| input[0] == POINTER && last.get(..2) == input.get(..2);
        if self.held.back().is_some_and(moved) {
            self.held_bytes -= self.held.pop_back().map_or(0, |last| last.len());
        } else if full {
            return;
        }
        self.held_bytes += input.len();
        self.held.push_back(input);
    }

    /// More of the last message that is held. If it is too long, all of it is dropped.
    fn extend(&mut self, byte: u8) {
        if self.held_bytes >= HELD_BYTES_MAX {
            self.held_bytes -= self.held.pop_back().map_or(0, |last| last.len());
            self.begun = Begun::Dropped;
        } else if let Some(last) = self.held.back_mut() {
            last.push(byte);
            self.held_bytes += 1;
        }
    }
}

/// Returns what a short message says, as far as that can be kept.
fn said_in(message: &[u8]) -> Option<Said> {
    match *message {
        [KEY, down, _, _, a, b, c, d] => Some(Said::Key {
            code: code_of(u32::from_be_bytes([a, b, c, d]))?,
            down: down != 0,
        }),
        [POINTER, buttons, a, b, c, d] => Some(Said::Pointer {
            x: u16::from_be_bytes([a, b]),
            y: u16::from_be_bytes([c, d]),
            buttons: buttons & BUTTONS,
        }),
        // with where the key is, by the PC's numbers
        [QEMU, 0, high, low, a, b, c, d, e, f, g, h] => {
            let number = u16::try_from(u32::from_be_bytes([e, f, g, h])).ok();
            let code = number.and_then(key_of);
            Some(Said::Key {
                code: code.or_else(|| code_of(u32::from_be_bytes([a, b, c, d])))?,
                down: (high, low) != (0, 0),
            })
        }
        _ => None,
    }
}

/// Returns Linux' code of a key by X11's number for what it writes or does.
fn code_of(symbol: u32) -> Option<u16> {
    let named = NAMED
        .iter()
        .find(|(first, last, _)| (*first..=*last).contains(&symbol));
    if let Some((first, _, code)) = named {
        return Some(code + (symbol - first) as u16);
    }
    let letter = char::from_u32(symbol).filter(char::is_ascii_graphic);
    let letter = letter.or_else(|| (symbol == 0x20).then_some(' '))?;
    ROWS.iter().find_map(|(plain, shifted, code)| {
        let at = plain.find(letter).or_else(|| shifted.find(letter))?;
        Some(code + at as u16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &[u8] = b"RFB 003.008\n\x01\x01";
    const RUNS: Stand = Stand {
        still: false,
        kept: false,
        pointer: false,
    };
    /// It stands still, and its guest has no agent.
    const STILL: Stand = Stand {
        still: true,
        ..RUNS
    };
    const KEPT: Stand = Stand {
        still: true,
        kept: true,
        pointer: true,
    };

    fn key(letter: u8, down: bool) -> [u8; 8] {
        [KEY, u8::from(down), 0, 0, 0, 0, 0, letter]
    }

    fn input(code: u16, down: bool) -> Done {
        Done::Input(Input::Key { code, down })
    }

    fn points(x: u8, buttons: u8) -> [u8; 6] {
        [POINTER, buttons, 0, x, 0, 7]
    }

    fn key_in(message: &[u8]) -> Option<(u16, bool)> {
        match said_in(message)? {
            Said::Key { code, down } => Some((code, down)),
            Said::Pointer { .. } => None,
        }
    }

    fn connected() -> Client {
        let mut client = Client::default();
        assert_eq!(client.takes(HELLO, KEPT).pass, HELLO);
        client
    }

    #[test]
    fn a_key_is_the_same_however_a_client_says_it() {
        for (symbol, code) in [
            (b'1' as u32, 2),
            (b'+' as u32, 13),
            (b'q' as u32, 16),
            (b'P' as u32, 25),
            (b'\'' as u32, 40),
            (b'~' as u32, 41),
            (b'|' as u32, 43),
            (b'm' as u32, 50),
            (b'?' as u32, 53),
            (0x20, 57),
            (0xff09, 15),
            (0xffc7, 68),
            (0xffc9, 88),
            (0xffff, 111),
        ] {
            assert_eq!(code_of(symbol), Some(code), "{symbol:x}");
        }
        for none in [0, 0x1f, 0x7f, 0xe4, 0xfe02, 0x0100_0041, u32::MAX] {
            assert_eq!(code_of(none), None, "{none:x}");
        }
        assert_eq!(key_in(&key(b'a', true)), Some((30, true)));
        // where it is goes before what it writes
        let placed = b"\xff\x00\0\x01\0\0\0q\0\0\0\x1e";
        assert_eq!(key_in(placed), Some((30, true)));
        let unplaced = b"\xff\x00\0\0\0\0\0q\0\0\x01\x1e";
        assert_eq!(key_in(unplaced), Some((16, false)));
        assert_eq!(key_in(b"\xff\x01\0\0"), None, "it is about sound");
    }

    #[test]
    fn a_key_goes_up_by_the_way_on_which_it_went_down() {
        let mut client = connected();
        let down = client.takes(&key(b'a', true), RUNS);
        assert_eq!(
            (down.pass.as_slice(), down.pressed),
            (&key(b'a', true)[..], true)
        );
        // it stands still now: what is down for QEMU goes up there, later
        let up = client.takes(&key(b'a', false), KEPT);
        assert_eq!(up, Step::default());
        let down = client.takes(&key(b'b', true), KEPT);
        assert_eq!(down.keep, [input(48, true)]);
        // it runs
        let up = client.takes(&key(b'b', false), RUNS);
        assert_eq!((up.keep, up.pass), (vec![input(48, false)], vec![]));
        assert!(client.is_holding());
        assert_eq!(client.goes_on().pass, key(b'a', false));
        assert!(!client.is_holding());
        assert_eq!(client.goes_on(), Step::default());
        // and who goes holds no key down that was kept
        client.takes(&key(b'c', true), RUNS);
        client.takes(&key(b'd', true), KEPT);
        assert_eq!(client.leaves(), [input(32, false)]);
        assert!(client.leaves().is_empty());
    }

    #[test]
    fn what_nobody_gives_to_the_guest_later_is_held_in_order_and_within_bounds() {
        let mut client = connected();
        let mut sent = key(b'a', true).to_vec();
        let look = [3, 1, 0, 0, 0, 0, 4, 0, 3, 0];
        sent.extend(look);
        sent.extend(key(b'a', false));
        assert_eq!(
            client.takes(&sent, STILL).pass,
            look,
            "the screen is for all time"
        );
        // what comes while something is held does not overtake it
        assert_eq!(client.takes(&key(b'b', true), RUNS), Step::default());
        let next = client.goes_on();
        assert_eq!(
            (next.pass.as_slice(), next.pressed),
            (&key(b'a', true)[..], true)
        );
        assert!(!client.goes_on().pressed);
        assert_eq!(client.goes_on().pass, key(b'b', true));
        // a user who types on and on while the machine stands still does not fill the node's memory
        for _ in 0..2 * HELD_MAX {
            client.takes(&key(b'x', true), STILL);
        }
        assert_eq!(client.held.len(), HELD_MAX);
        // nor does a key stay down for which there was no room when it went up
        let mut client = connected();
        client.takes(&key(b'a', true), RUNS);
        for down in [true, false].repeat(HELD_MAX) {
            client.takes(&key(b'x', down), STILL);
        }
        client.takes(&key(b'y', true), STILL);
        for letter in [b'a', b'y'] {
            client.takes(&key(letter, false), STILL);
        }
        let last: Vec<&[u8]> = client
            .held
            .range(HELD_MAX - 1..)
            .map(|held| &held[..])
            .collect();
        assert_eq!(last, [key(b'x', false), key(b'a', false)]);
        // only the end of a pointer's movement is held, but every click
        let mut client = connected();
        for pointer in [
            b"\x05\x00at-1",
            b"\x05\x00at-2",
            b"\x05\x01at-2",
            b"\x05\x00at-2",
        ] {
            assert_eq!(client.takes(pointer, STILL), Step::default());
        }
        let way: Vec<&[u8]> = vec![b"\x05\x00at-2", b"\x05\x01at-2", b"\x05\x00at-2"];
        assert_eq!(client.held, way);
    }

    #[test]
    fn a_button_goes_up_by_the_way_on_which_it_went_down_and_moves_are_not_kept() {
        let clicks = |x, buttons| Done::Points { x, y: 7, buttons };
        let mut client = connected();
        assert_eq!(client.takes(&points(1, 1), RUNS).pass, points(1, 1));
        // it stands still now: what is down for QEMU goes up there, later
        assert_eq!(client.takes(&points(2, 0), KEPT), Step::default());
        assert_eq!(client.goes_on().pass, points(2, 0));
        // a drag: where it begins and ends
        let sent = [(3, 1), (4, 1), (5, 5), (6, 4), (7, 0)].map(|(x, buttons)| points(x, buttons));
        let step = client.takes(&sent.concat(), KEPT);
        let kept = [clicks(3, 1), clicks(5, 5), clicks(6, 4), clicks(7, 0)];
        assert_eq!(step.keep, kept);
        assert!(step.pass.is_empty());
        // a move waits for QEMU, and so does all if nobody knows how large the screen is
        let step = client.takes(&points(8, 0), KEPT);
        assert_eq!(
            (step, client.goes_on().pass),
            (Step::default(), points(8, 0).to_vec())
        );
        let elsewhere = Stand { kept: true, ..RUNS };
        assert_eq!(client.takes(&points(9, 1), elsewhere).pass, points(9, 1));
        client.takes(&points(9, 0), elsewhere);
        // and who goes holds no button down that was kept
        client.takes(&points(10, 1), KEPT);
        assert_eq!(client.leaves(), [clicks(10, 0)]);
        assert!(client.leaves().is_empty());
    }

    #[test]
    fn a_text_in_several_pieces_goes_one_way_and_never_fills_memory() {
        let mut client = connected();
        assert!(
            client
                .takes(b"\x06\0\0\0\0\0\0\x05he", KEPT)
                .pass
                .is_empty()
        );
        assert!(
            client.goes_on().pass.is_empty(),
            "its rest is still to come"
        );
        assert!(
            client.takes(b"llo", RUNS).pass.is_empty(),
            "as its beginning"
        );
        let text = b"\x06\0\0\0\0\0\0\x05hello".to_vec();
        assert_eq!((client.goes_on().pass, client.held_bytes), (text, 0));
        // what has begun to be passed on is, though the machine stands still since then, and nothing comes between
        let head = b"\x06\0\0\0\0\0\0\x05he";
        assert_eq!(client.takes(head, RUNS).pass, head);
        assert_eq!(client.takes(b"llo", KEPT).pass, b"llo");
        // one that is too long is dropped, and others are not
        let length = 2 * HELD_BYTES_MAX as u32;
        let head = [&[6_u8, 0, 0, 0][..], &length.to_be_bytes()].concat();
        assert!(client.takes(&head, STILL).pass.is_empty());
        for _ in 0..32 {
            let piece = [0; HELD_BYTES_MAX / 16];
            assert!(client.takes(&piece, STILL).pass.is_empty());
            assert!(client.held_bytes <= HELD_BYTES_MAX);
        }
        assert_eq!(client.held_bytes, 0);
        client.takes(&key(b'a', true), STILL);
        assert_eq!(client.held.len(), 1);
    }

    #[test]
    fn what_nobody_understands_is_passed_on() {
        let mut client = connected();
        let strange = [&b"\xf0any"[..], &key(b'a', true)].concat();
        let step = client.takes(&strange, KEPT);
        assert_eq!(
            (step.pass, step.keep, step.pressed),
            (strange, vec![], false)
        );
    }
}
