//! One line of the kernel's trace: a program has asked for blocks.

/// A request for blocks.
#[derive(Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The thread's name.
    pub name: &'a str,
    pub thread: u32,
    /// The device's numbers.
    pub device: (u32, u32),
    /// First sector, and how many.
    pub first: u64,
    pub count: u64,
}

/// Reads a line, such as ` dd-310     [000] d..1.   12.345678: block_bio_queue: 254,0 RA 2048 + 8 [dd]`. `None` if it tells of
/// anything else than a read.
pub fn parse(line: &str) -> Option<Event<'_>> {
    let (head, tail) = line.split_once(": block_bio_queue: ")?;
    let task = &head[..head.rfind(" [")?];
    let (name, thread) = task.trim().rsplit_once('-')?;
    let mut words = tail.split(' ');
    let (major, minor) = words.next()?.split_once(',')?;
    if !words.next()?.starts_with('R') {
        return None;
    }
    let first = words.next()?.parse().ok()?;
    if words.next()? != "+" {
        return None;
    }
    Some(Event {
        name,
        thread: thread.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        first,
        count: words.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_read_is_understood_whatever_its_program_is_called() {
        let dd = "              dd-310     [000] d..1.   12.345678: block_bio_queue: 254,0 RA 2048 + 256 [dd]";
        let event = parse(dd).unwrap();
        assert_eq!((event.name, event.thread), ("dd", 310));
        assert_eq!(event.device, (254, 0));
        assert_eq!((event.first, event.count), (2048, 256));
        let odd = " Web Content [1]-7-4711    [001] .....  99.000001: block_bio_queue: 8,1 R 9 + 8 [Web Content [1]-]";
        let event = parse(odd).unwrap();
        assert_eq!((event.name, event.thread), ("Web Content [1]-7", 4711));
    }

    #[test]
    fn what_is_no_read_is_left_out() {
        for line in [
            "",
            "CPU:0 [LOST 12 EVENTS]",
            "##### CPU 1 buffer started ####",
            " a-1 [000] ..... 1.0: block_bio_queue: 254,0 WS 2048 + 8 [a]",
            " a-1 [000] ..... 1.0: block_bio_queue: 254,0 R x + 8 [a]",
            " a-1 [000] ..... 1.0: block_bio_queue: 254,0 R 8 - 8 [a]",
            " a-1 [000] ..... 1.0: sched_switch: 254,0 R 8 + 8 [a]",
            "a 1.0: block_bio_queue: 254,0 R 8 + 8 [a]",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_does_harm(line in "\\PC{0,40}: block_bio_queue: \\PC{0,40}") {
            let _ = parse(&line);
        }
    }
}
