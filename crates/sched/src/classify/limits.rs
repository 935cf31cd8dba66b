//! The numbers of the classification, with their units and reasons. Times are in microseconds.

const SECOND: u64 = 1_000_000;

/// Length of the period before and after an input whose requests are compared: table 1 of the paper.
pub(super) const PERIOD_US: u64 = 4 * SECOND;
/// A program is interactive if more than this share of its compared requests came after inputs: table 1 of the paper.
pub(super) const THRESHOLD_PERCENT: u64 = 60;
/// Inputs that are closer than this are one: somebody types, or clicks without end. Between them nothing is compared, because
/// each request would be both before and after an input.
pub(super) const BURST_US: u64 = SECOND;
/// Fewer compared requests than this say nothing about a program: figure 7 decides with four.
pub(super) const EVIDENCE_MIN: u32 = 4;
/// The most that the time between two inputs counts for, in requests: more are scaled down. So no single one decides over many.
pub(super) const GAP_COUNTS_MAX: u32 = 64;
/// With more votes than this both numbers of them are halved.
pub(super) const VOTES_MAX: u32 = 32;
/// A program that has fewer votes than this is still judged together with the strangers.
pub(super) const VOTES_MIN: u32 = 2;
/// With more compared requests than this both counts are halved, so that they follow a program that changes.
pub(super) const COUNTS_MAX: u32 = 512;
/// After this long both counts are halved when new ones come, so that yesterday weighs less than today.
pub(super) const AGE_US: u64 = 600 * SECOND;
/// A slice of the time since the last input, in which requests are counted together.
pub(super) const SLICE_US: u64 = SECOND / 4;
/// Slices that are kept: both periods together.
pub(super) const SLICES: usize = (2 * PERIOD_US / SLICE_US) as usize;

/// After this long without a request a program's run ends.
pub(super) const PAUSE_US: u64 = PERIOD_US;
/// Requests in the beginning of a run by which it is weighed.
pub(super) const RUN_WEIGHT: u64 = 16;
/// Less weight than this, two runs, says nothing about how a program's runs begin.
pub(super) const RUNS_WEIGHT_MIN: u32 = 32;
/// Less than this, six runs, says nothing of such as begin later than a launch does.
pub(super) const RUNS_WEIGHT_LATE_MIN: u32 = 96;
/// Nor do a program's runs say anything if this much of all time is soon after an input.
pub(super) const CHANCE_PERCENT_LATE_MAX: u32 = 70;
/// The largest share of a program's runs that is ever required to begin soon after an input, however fast inputs follow each other.
pub(super) const RUNS_SHARE_PERCENT_MAX: u32 = 90;
/// The parts of the time that are taken for soon after an input before anything is known of inputs: within [`PROMPT_US`] and [`PERIOD_US`].
pub(super) const CHANCE_PERCENT_FIRST: [u32; 2] = [25, 60];
/// The most that the time between two inputs counts for when that part is computed: nights say nothing of days.
pub(super) const CHANCE_GAP_US: u64 = 60 * SECOND;
/// After more time than this all of it is halved.
pub(super) const CHANCE_US: u64 = 1200 * SECOND;
/// With more weight than this it is halved, together with the answers in it.
pub(super) const RUNS_WEIGHT_MAX: u32 = 512;
/// A program about which nothing is known is taken for interactive for so long after it started on an input: a cold launch. A
/// person waits ten seconds for something to begin; under load it takes half as much again.
pub(super) const LAUNCH_US: u64 = 15 * SECOND;
/// A launch begins to read within this time after its input, also in a guest that has much to do,
pub(super) const PROMPT_US: u64 = 3 * SECOND / 2;
/// and never pauses for longer than this: what is read for the first time at any other time was not launched.
pub(super) const PROMPT_PAUSE_US: u64 = SECOND;
/// Somebody who waits for an answer has it within this time, or has gone for a coffee.
pub(super) const EPISODE_US: u64 = 60 * SECOND;
/// A run that has moved this many bytes, and is not interactive, is bulk.
pub(super) const BULK_BYTES: u64 = 64 << 20;
/// A sequential stream that has moved this many bytes faster than a player is bulk: few files of a launch are as large.
pub(super) const STREAM_BYTES: u64 = 16 << 20;

/// What a player reads in is counted in windows of this length.
pub(super) const WINDOW_US: u64 = 2 * SECOND;
/// So many windows without a jump are a player's.
pub(super) const WINDOWS: usize = 5;
/// In so many of these windows at least it has read: a song is read ahead for several seconds at once.
pub(super) const WINDOWS_FILLED_MIN: usize = 3;
/// The most that a player reads in a second: 64 Mbit, a film in four times the pixels of full HD.
pub(super) const PLAYER_BYTES_PER_S_MAX: u64 = 8 << 20;
/// A window may have this many bytes more than twice the mean: one read-ahead more than usual.
pub(super) const PLAYER_SLACK_BYTES: u64 = 1 << 20;

/// Sequential streams that are followed in a machine.
pub(super) const STREAMS_MAX: usize = 16;
/// A request that begins so far behind the end of a stream at most still belongs to it: requests overtake each other.
pub(super) const STREAM_BEHIND_BYTES: u64 = 1 << 20;
/// A request that begins so far after the end of a stream at most still belongs to it: what lies between was in memory.
pub(super) const STREAM_AHEAD_BYTES: u64 = 512 << 10;
/// A stream with this many bytes keeps its place against new ones until it has paused.
pub(super) const STREAM_KEPT_BYTES: u64 = 1 << 20;

/// A part of a disk in which the next request is taken for the same program's as the last one.
pub(super) const SPOT_BYTES: u64 = 1 << 20;
/// For how long a part of a disk, or a file, is taken for the program's that an agent has named.
pub(super) const SPOT_US: u64 = 10 * SECOND;
/// For how long a directory is taken for the one program's that has read there, and for shared if another one has (a file if two others have),
pub(super) const FOLDER_US: u64 = 600 * SECOND;
/// if it has done so this many times at least,
pub(super) const FOLDER_RUNS_MIN: u32 = 2;
/// with a pause as long as this in between.
pub(super) const FOLDER_PAUSE_US: u64 = SECOND;
/// For how long a program that has read at a new place is taken for the one that reads at the next new place.
pub(super) const NEWEST_US: u64 = SECOND / 2;
/// How long after a request an agent may tell whose it was.
pub(super) const RECENT_US: u64 = 2 * SECOND;
/// Requests that an agent may still tell of.
pub(super) const RECENT_MAX: usize = 128;
/// Parts of disks, files and directories whose programs are known: 80 to 250 KiB each.
pub(super) const OWNERS_MAX: usize = 1024;
/// Bytes of a single request that an agent may tell of.
pub(super) const TOLD_BYTES_MAX: u64 = 4 << 20;
/// Where an agent tells amounts only, so much of all must be one program's.
pub(super) const SOLE_PERCENT: u64 = 80;

/// Machines at a time.
pub(super) const MACHINES_MAX: usize = 1024;
/// Programs that are known of a machine: some 120 KiB.
pub(super) const PROGRAMS_MAX: usize = 512;
/// Programs that a machine's [`super::Status`] lists.
pub(super) const STATUS_PROGRAMS_MAX: usize = 64;
/// Lists at a time, more than machines: so one of them always belongs to none.
pub(super) const LISTS_MAX: usize = 2 * MACHINES_MAX;

/// Bytes of a program's name. Linux' have 15, Windows' are file names.
pub(super) const NAME_BYTES_MAX: usize = 48;
/// Names in a list, or of a machine, that somebody allowed or forbade by hand.
pub(super) const HAND_MAX: usize = 256;
/// Programs in a list that were learned.
pub(super) const LEARNED_MAX: usize = 2048;
/// Bytes of a list in a file.
pub(super) const LIST_BYTES_MAX: usize = 1 << 20;
/// Programs that a machine teaches its image. It takes several machines to fill a list.
pub(super) const TAUGHT_MAX: usize = 256;
/// Times that a machine teaches its image the same program, so that no machine alone decides.
pub(super) const TAUGHT_EACH_MAX: u8 = 8;
/// A learned program is believed to be interactive if so many machines have taught it,
pub(super) const CREDIBLE_MACHINES: u32 = 3;
/// so many times,
pub(super) const CREDIBLE_SEEN: u32 = 4;
/// and in this share of them it was.
pub(super) const CREDIBLE_PERCENT: u64 = 80;
/// In at most this share of them, it is believed not to be.
pub(super) const INCREDIBLE_PERCENT: u64 = 50;
/// With more times than this both numbers are halved, so that they follow an image that changes.
pub(super) const SEEN_MAX: u32 = 1024;
