//! Gives a user's inputs to the guest: keys, pointer and fingers through devices that the kernel makes for that (uinput), text through the
//! serial console's terminal.
//!
//! The devices are made when the first such input comes, and are there until the agent ends. Programs that show a screen find a new device
//! a moment later, and what it says before that is lost; so nothing is said for that long.

use super::sys::{self, Uinput};
use crate::input::{FINGERS_MAX, Input, PLACE_MAX};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where the kernel makes input devices.
const UINPUT_PATH: &str = "/dev/uinput";
/// What the kernel's consoles are.
const CONSOLES_PATH: &str = "/sys/class/tty/console/active";
/// How long a new device is left alone, in ms: the guest's desktop opens it meanwhile.
const SETTLES_MS: u64 = 2_000;
/// How many bytes may wait for the program that reads the console: the kernel has room for 4096, and drops what is beyond.
const TYPED_MAX: usize = 1024;

/// Kinds of events, keys and axes (linux/input-event-codes.h).
mod code {
    pub const SYN: u16 = 0;
    pub const KEY: u16 = 1;
    pub const REL: u16 = 2;
    pub const ABS: u16 = 3;
    pub const REP: u16 = 0x14;
    pub const REL_WHEEL: u16 = 8;
    pub const ABS_X: u16 = 0;
    pub const ABS_Y: u16 = 1;
    pub const ABS_MT_SLOT: u16 = 0x2f;
    pub const ABS_MT_POSITION_X: u16 = 0x35;
    pub const ABS_MT_POSITION_Y: u16 = 0x36;
    pub const ABS_MT_TRACKING_ID: u16 = 0x39;
    pub const BTN_LEFT: u16 = 0x110;
    pub const BTN_RIGHT: u16 = 0x111;
    pub const BTN_MIDDLE: u16 = 0x112;
    pub const BTN_TOUCH: u16 = 0x14a;
    /// Keys of keyboards; what follows are buttons of other devices.
    pub const KEYS_MAX: u16 = 248;
    pub const DIRECT: u16 = 1;
}

/// Makes a device.
type Make = fn() -> io::Result<File>;

/// One event of the kernel's: kind, code, value.
type Told = (u16, u16, i32);

/// The end of what belongs together.
const END: Told = (code::SYN, 0, 0);
/// The bits of an input's buttons, with their codes.
const BUTTONS: [(u8, u16); 3] = [
    (1, code::BTN_LEFT),
    (2, code::BTN_MIDDLE),
    (4, code::BTN_RIGHT),
];
/// The bits for the wheel, with how it turns.
const WHEEL: [(u8, i32); 2] = [(8, 1), (16, -1)];

/// A device of the guest that the agent has made.
struct Device {
    file: File,
    since_ms: u64,
}

/// What gives inputs to the guest.
#[derive(Default)]
pub(super) struct Typing {
    keyboard: Option<Device>,
    pointer: Option<Device>,
    screen: Option<Device>,
    /// The pointer's buttons that are down.
    buttons: u8,
    /// The fingers that touch the screen, a bit each.
    fingers: u16,
    /// The number of the next touch.
    touch: u16,
}

/// Why an input was not given.
enum Not {
    /// The guest has not taken what it was given before: it may in a moment.
    Yet,
    /// It can't be.
    Possible(String),
}

impl Typing {
    /// Gives inputs to the guest, in order. Returns how many it has got, and why the next one can't be given, if that is for more than a
    /// moment.
    pub fn give(&mut self, now_ms: u64, inputs: &[Input]) -> (usize, Option<String>) {
        // opened for each message: a terminal is another one after its session has ended
        let mut console = None;
        for (count, input) in inputs.iter().enumerate() {
            let given = match input {
                Input::Text(bytes) => typed(&mut console, bytes),
                _ => self.told(now_ms, input),
            };
            match given {
                Ok(()) => {}
                Err(Not::Yet) => return (count, None),
                Err(Not::Possible(why)) => return (count, Some(why)),
            }
        }
        (inputs.len(), None)
    }

    fn told(&mut self, now_ms: u64, input: &Input) -> Result<(), Not> {
        let (device, make) = match input {
            Input::Pointer { .. } => (&mut self.pointer, make_pointer as Make),
            Input::Touch { .. } => (&mut self.screen, make_screen as Make),
            Input::Key { .. } | Input::Text(_) => (&mut self.keyboard, make_keyboard as Make),
        };
        let device = match device {
            Some(device) => device,
            None => {
                let file = make().map_err(|error| {
                    Not::Possible(format!(
                        "{UINPUT_PATH}: {error}; has the guest's kernel the module uinput?"
                    ))
                })?;
                device.insert(Device {
                    file,
                    since_ms: now_ms,
                })
            }
        };
        if now_ms.saturating_sub(device.since_ms) < SETTLES_MS {
            return Err(Not::Yet);
        }
        let told = match input {
            Input::Key { code, down } => vec![(code::KEY, *code, i32::from(*down)), END],
            Input::Pointer { x, y, buttons } => pointed(*x, *y, self.buttons, *buttons),
            Input::Touch { finger, at } => {
                touched(&mut self.fingers, &mut self.touch, *finger, *at)
            }
            Input::Text(_) => Vec::new(),
        };
        if let Input::Pointer { buttons, .. } = input {
            self.buttons = *buttons;
        }
        let bytes: Vec<u8> = told.into_iter().flat_map(event).collect();
        let written = (&device.file).write_all(&bytes);
        written.map_err(|error| Not::Possible(format!("{UINPUT_PATH}: {error}")))
    }
}

/// The bytes of `struct input_event` of linux/input.h: the time, which the kernel sets, kind, code and value.
fn event((kind, code, value): Told) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<libc::timeval>()];
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(code.to_ne_bytes());
    bytes.extend(value.to_ne_bytes());
    bytes
}

/// What a pointer says that is here, with these buttons down, and had others down before.
fn pointed(x: u16, y: u16, before: u8, now: u8) -> Vec<Told> {
    let mut told = vec![
        (code::ABS, code::ABS_X, i32::from(x)),
        (code::ABS, code::ABS_Y, i32::from(y)),
    ];
    for (bit, button) in BUTTONS {
        if (before ^ now) & bit != 0 {
            told.push((code::KEY, button, i32::from(now & bit != 0)));
        }
    }
    for (bit, turn) in WHEEL {
        if now & !before & bit != 0 {
            told.push((code::REL, code::REL_WHEEL, turn));
        }
    }
    told.push(END);
    told
}

/// What a screen says that a finger touches, or leaves (the kernel's multi-touch protocol, type B).
fn touched(fingers: &mut u16, touch: &mut u16, finger: u8, at: Option<(u16, u16)>) -> Vec<Told> {
    let bit = 1 << finger.min(FINGERS_MAX - 1);
    let (before, was_down) = (*fingers, *fingers & bit != 0);
    let mut told = vec![(code::ABS, code::ABS_MT_SLOT, i32::from(finger))];
    match at {
        Some((x, y)) => {
            if !was_down {
                *touch = touch.wrapping_add(1);
                told.push((code::ABS, code::ABS_MT_TRACKING_ID, i32::from(*touch)));
            }
            told.push((code::ABS, code::ABS_MT_POSITION_X, i32::from(x)));
            told.push((code::ABS, code::ABS_MT_POSITION_Y, i32::from(y)));
            *fingers |= bit;
        }
        None => {
            told.push((code::ABS, code::ABS_MT_TRACKING_ID, -1));
            *fingers &= !bit;
        }
    }
    if (before == 0) != (*fingers == 0) {
        told.push((code::KEY, code::BTN_TOUCH, i32::from(*fingers != 0)));
    }
    told.push(END);
    told
}

fn make_keyboard() -> io::Result<File> {
    let keys = (1..=code::KEYS_MAX).map(|key| (Uinput::Key, key));
    let kinds = [(Uinput::Kind, code::KEY), (Uinput::Kind, code::REP)];
    make("floe keyboard", kinds.into_iter().chain(keys), &[])
}

fn make_pointer() -> io::Result<File> {
    let has = [
        (Uinput::Kind, code::KEY),
        (Uinput::Kind, code::REL),
        (Uinput::Kind, code::ABS),
        (Uinput::Key, code::BTN_LEFT),
        (Uinput::Key, code::BTN_MIDDLE),
        (Uinput::Key, code::BTN_RIGHT),
        (Uinput::Movement, code::REL_WHEEL),
        (Uinput::Place, code::ABS_X),
        (Uinput::Place, code::ABS_Y),
    ];
    let place = i32::from(PLACE_MAX);
    make(
        "floe pointer",
        has.into_iter(),
        &[(code::ABS_X, place), (code::ABS_Y, place)],
    )
}

fn make_screen() -> io::Result<File> {
    let has = [
        (Uinput::Kind, code::KEY),
        (Uinput::Kind, code::ABS),
        (Uinput::Key, code::BTN_TOUCH),
        (Uinput::Place, code::ABS_MT_SLOT),
        (Uinput::Place, code::ABS_MT_POSITION_X),
        (Uinput::Place, code::ABS_MT_POSITION_Y),
        (Uinput::Place, code::ABS_MT_TRACKING_ID),
        (Uinput::Property, code::DIRECT),
    ];
    let place = i32::from(PLACE_MAX);
    let largest = [
        (code::ABS_MT_SLOT, i32::from(FINGERS_MAX) - 1),
        (code::ABS_MT_POSITION_X, place),
        (code::ABS_MT_POSITION_Y, place),
        (code::ABS_MT_TRACKING_ID, i32::from(u16::MAX)),
    ];
    make("floe screen", has.into_iter(), &largest)
}

/// Makes an input device. `largest`: the largest values of its axes.
fn make(
    name: &str,
    has: impl Iterator<Item = (Uinput, u16)>,
    largest: &[(u16, i32)],
) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(UINPUT_PATH)?;
    for (what, value) in has {
        sys::uinput(file.as_fd(), what, value)?;
    }
    (&file).write_all(&setup(name, largest))?;
    sys::uinput(file.as_fd(), Uinput::Create, 0)?;
    Ok(file)
}

/// The bytes of `struct uinput_user_dev` of linux/uinput.h, which every kernel takes.
fn setup(name: &str, largest: &[(u16, i32)]) -> Vec<u8> {
    const NAME_BYTES: usize = 80;
    const AXES: usize = 64;
    /// Of a device that is on no bus.
    const BUS_VIRTUAL: u16 = 6;
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(NAME_BYTES, 0);
    for id in [BUS_VIRTUAL, 0, 0, 1] {
        bytes.extend(u16::to_ne_bytes(id));
    }
    bytes.extend(0u32.to_ne_bytes()); // effects
    let mut most = [0i32; AXES];
    for (axis, value) in largest {
        most[usize::from(*axis)] = *value;
    }
    bytes.extend(most.iter().flat_map(|value| value.to_ne_bytes()));
    // the smallest values, noise and rest
    bytes.resize(bytes.len() + 3 * AXES * size_of::<i32>(), 0);
    bytes
}

/// Types on the serial console's terminal, if whoever reads it has taken most of what was typed before.
fn typed(console: &mut Option<File>, bytes: &[u8]) -> Result<(), Not> {
    let not = |error: io::Error| Not::Possible(format!("the serial console: {error}"));
    let console = match console {
        Some(console) => console,
        None => {
            let mut options = OpenOptions::new();
            let opened = options
                .read(true)
                .write(true)
                .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open(console_path());
            console.insert(opened.map_err(not)?)
        }
    };
    if sys::typed_on(console.as_fd()).map_err(not)? > TYPED_MAX {
        return Err(Not::Yet);
    }
    // one that fails has failed for the first byte: the terminal is the same for all of them
    let mut all = bytes.iter();
    all.try_for_each(|byte| sys::type_on(console.as_fd(), *byte))
        .map_err(not)
}

/// Returns the terminal of the serial line that is a console of the kernel's.
fn console_path() -> PathBuf {
    let active = std::fs::read_to_string(CONSOLES_PATH);
    serial_of(active.as_deref().unwrap_or_default())
}

fn serial_of(active: &str) -> PathBuf {
    let serial = ["ttyS", "ttyAMA", "hvc"];
    let is_serial = |name: &&str| serial.iter().any(|kind| name.starts_with(kind));
    let mut names = active.split_whitespace();
    Path::new("/dev").join(names.find(is_serial).unwrap_or("ttyS0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_button_goes_down_once_and_the_wheel_turns_once() {
        let place = [(3, 0, 5), (3, 1, 6)];
        let told = |before, now| pointed(5, 6, before, now);
        assert_eq!(told(0, 0), [place[0], place[1], END]);
        assert_eq!(told(0, 1), [place[0], place[1], (1, 0x110, 1), END]);
        assert_eq!(told(1, 1), [place[0], place[1], END]);
        assert_eq!(told(5, 1), [place[0], place[1], (1, 0x111, 0), END]);
        assert_eq!(told(0, 16), [place[0], place[1], (2, 8, -1), END]);
        assert_eq!(told(16, 0), [place[0], place[1], END]);
    }

    #[test]
    fn a_touch_begins_moves_and_ends_as_one() {
        let (mut fingers, mut touch) = (0, 0);
        let mut told = |finger, at| touched(&mut fingers, &mut touch, finger, at);
        let begins = [
            (3, 0x2f, 1),
            (3, 0x39, 1),
            (3, 0x35, 7),
            (3, 0x36, 8),
            (1, 0x14a, 1),
            END,
        ];
        assert_eq!(told(1, Some((7, 8))), begins);
        let moves = [(3, 0x2f, 1), (3, 0x35, 9), (3, 0x36, 8), END];
        assert_eq!(told(1, Some((9, 8))), moves);
        let second = [(3, 0x2f, 0), (3, 0x39, 2), (3, 0x35, 0), (3, 0x36, 0), END];
        assert_eq!(told(0, Some((0, 0))), second);
        assert_eq!(told(1, None), [(3, 0x2f, 1), (3, 0x39, -1), END]);
        let ends = [(3, 0x2f, 0), (3, 0x39, -1), (1, 0x14a, 0), END];
        assert_eq!(told(0, None), ends);
    }

    #[test]
    fn what_the_kernel_is_given_has_its_sizes() {
        assert_eq!(event(END).len(), size_of::<libc::timeval>() + 8);
        let bytes = setup("floe pointer", &[(1, 0x7fff)]);
        assert_eq!(bytes.len(), 80 + 8 + 4 + 4 * 64 * 4);
        assert_eq!(&bytes[..13], b"floe pointer\0");
        assert_eq!(bytes[92 + 4..][..4], 0x7fffi32.to_ne_bytes());
    }

    #[test]
    fn the_console_is_the_serial_one() {
        let found = |active| serial_of(active).display().to_string();
        assert_eq!(found("tty0 ttyS0\n"), "/dev/ttyS0");
        assert_eq!(found("ttyAMA0"), "/dev/ttyAMA0");
        assert_eq!(found("tty0\n"), "/dev/ttyS0");
    }
}
