//! What each fuzz target checks. A target takes bytes from anywhere and may do anything but panic.
//!
//! `make fuzz` searches, guided by coverage, with a stable compiler (see `crates/torture/src/fuzz.rs`); so does
//! `cargo +nightly fuzz run manifest`, with an address sanitizer. `cargo test -p floe-fuzz` (part of `make test`)
//! replays the corpus of every target, each entry also damaged in a few thousand ways.
//!
//! To add a parser: a function here, its line in [`TARGETS`], a file in `fuzz_targets/`, its `[[bin]]` in `Cargo.toml`, and
//! at least one valid input in `corpus/<name>/`. The tests of this crate fail if one of them is forgotten.

use floe_guest::line::{Line, Lines};
use floe_guest::message::{Answer, Call, ToGuest, ToHost};
use floe_image::*;
use floe_planner::{Method, Model, TrainOptions, ZeroTrace, train};

mod disks;
mod extents;
mod records;
mod scheduling;
mod swarm;

// Parsers that need nothing of their crates, which would bring QEMU, FUSE, QUIC and S3 along.
#[allow(dead_code)]
#[path = "../../crates/mount/src/abi.rs"]
mod fuse;
#[allow(dead_code)]
#[path = "../../crates/mount/src/maps/file.rs"]
mod kept;
#[allow(dead_code)]
#[path = "../../crates/machine/src/qga/wire.rs"]
mod qga;
#[allow(dead_code)]
#[path = "../../crates/machine/src/qmp/wire.rs"]
mod qmp;
#[path = "../../crates/machine/src/shown.rs"]
mod shown;

// What a node keeps and is told, with the vocabulary of its interface that stands in it. The files name `floe_api`, `floe_machine` and
// the crates that a node is made of, for which this crate stands in: whole, they would bring a server and QEMU along.
extern crate self as floe_api;
extern crate self as floe_ground;
extern crate self as floe_inventory;
extern crate self as floe_machine;

#[allow(dead_code)]
#[path = "../../crates/api/src"]
mod api {
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;
    use utoipa::{IntoParams, ToSchema};

    #[path = "afterwards.rs"]
    mod afterwards;
    #[path = "ensembles.rs"]
    mod ensembles;
    #[path = "errors.rs"]
    mod errors;
    #[path = "forks.rs"]
    mod forks;
    #[path = "forward.rs"]
    mod forward;
    #[path = "hardware.rs"]
    mod hardware;
    #[path = "images.rs"]
    mod images;
    #[path = "independent.rs"]
    mod independent;
    #[path = "machines.rs"]
    mod machines;
    #[path = "moves.rs"]
    mod moves;
    #[path = "network.rs"]
    mod network;
    #[path = "pool.rs"]
    mod pool;
    #[path = "resize.rs"]
    mod resize;
    #[path = "swarm.rs"]
    mod swarm;
    #[path = "visible.rs"]
    mod visible;
    pub use afterwards::*;
    pub use ensembles::*;
    pub use errors::*;
    pub use forks::*;
    pub use forward::*;
    pub use hardware::*;
    pub use images::*;
    pub use independent::*;
    pub use machines::*;
    pub use moves::*;
    pub use network::*;
    pub use pool::*;
    pub use resize::*;
    pub use swarm::*;
    pub use visible::*;
}
#[allow(dead_code)]
#[path = "../../crates/api/src/credentials.rs"]
pub mod credentials;
#[allow(dead_code)]
#[path = "../../crates/machine/src/guard/rules.rs"]
pub mod guard;
#[allow(dead_code)]
#[path = "../../crates"]
mod node {
    #[path = "import/src"]
    pub mod images {
        #[path = "archive.rs"]
        pub mod archive;
        #[path = "disk_boot.rs"]
        pub mod disk_boot;
        #[path = "disk_content.rs"]
        pub mod disk_content;
        #[path = "disk_extent.rs"]
        pub mod disk_extent;
        #[path = "disk_foreign.rs"]
        pub mod disk_foreign;
        #[path = "disk_format.rs"]
        pub mod disk_format;
        #[path = "disk_refused.rs"]
        pub mod disk_refused;
        #[path = "disk_vhd.rs"]
        pub mod disk_vhd;
        #[path = "disk_vmdk.rs"]
        pub mod disk_vmdk;
        #[path = "ovf.rs"]
        pub mod ovf;
        #[path = "agent/stat.rs"]
        pub mod stat;
    }
    #[path = "inventory/src/inventory"]
    pub mod inventory {
        #[path = "given.rs"]
        pub mod given;
        #[path = "record.rs"]
        pub mod record;
        #[path = "small.rs"]
        pub mod small;
        #[path = "turn.rs"]
        pub mod turn;
    }
    #[path = "inputs/src"]
    pub mod inputs {
        #[path = "decide.rs"]
        pub mod decide;
        #[path = "file.rs"]
        pub mod file;
    }
    #[path = "hosts/src/cluster"]
    pub mod cluster {
        #[path = "invitation.rs"]
        pub mod invitation;
        #[path = "record.rs"]
        pub mod record;
        #[path = "roster.rs"]
        pub mod roster;
    }
    #[path = "pool/src/ensemble/file.rs"]
    pub mod ensemble;
    #[path = "fork/src/record.rs"]
    pub mod fork;
    #[path = "hosts/src/placement/listed.rs"]
    pub mod listed;
    #[path = "ground/src/names.rs"]
    pub mod names;
    #[path = "inventory/src/network/plan.rs"]
    pub mod network;
    #[path = "pool/src/pool/record.rs"]
    pub mod pool;
    #[path = "hosts/src/placement/slurm_text.rs"]
    pub mod slurm;
    #[path = "hosts/src/placement/ticket.rs"]
    pub mod ticket;
    #[path = "ground/src/vnc.rs"]
    pub mod vnc;
    pub use names::{MachineName, NameError};
}
pub use api::*;
pub use disks::{appliance, disk_archive, disk_boot, disk_entry, disk_header, disk_tables};
pub use extents::{extents, kept_map};
use node::images::{archive, disk_foreign, disk_format, disk_refused, disk_vhd, disk_vmdk};
pub use node::{MachineName, NameError};
use node::{images, inventory, names};
pub use records::*;
pub use scheduling::{io_list, vnc_client};
pub use swarm::{swarm_list, swarm_message, swarm_numbers, swarm_offer, tree_file};

/// Stands in for the table of keys.
pub(crate) fn key_of(number: u16) -> Option<u16> {
    (1..0x80).contains(&number).then_some(number)
}

/// A fuzz target: arbitrary bytes in, a panic on a broken promise.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("manifest", manifest),
    ("segment", segment),
    ("pack_index", pack_index),
    ("pack_file", pack_file),
    ("frame", frame),
    ("layout", layout),
    ("batch_request", batch_request),
    ("batch_response", batch_response),
    ("datagram", datagram),
    ("trace", trace),
    ("model", model),
    ("zero_trace", zero_trace),
    ("kernel_types", kernel_types),
    ("name", name),
    ("tag_file", tag_file),
    ("redirect", redirect),
    ("qmp_line", qmp_line),
    ("agent_line", agent_line),
    ("fuse_request", fuse_request),
    ("guest_message", guest_message),
    ("exec_frame", exec_frame),
    ("swarm_list", swarm_list),
    ("swarm_message", swarm_message),
    ("swarm_offer", swarm_offer),
    ("swarm_numbers", swarm_numbers),
    ("tree_file", tree_file),
    ("copy_archive", copy_archive),
    ("video_memory", video_memory),
    ("ensemble_file", ensemble_file),
    ("machine_record", machine_record),
    ("fork_record", fork_record),
    ("network_record", network_record),
    ("substrate_record", substrate_record),
    ("ticket_record", ticket_record),
    ("inputs_file", inputs_file),
    ("hosts_file", hosts_file),
    ("slurm_output", slurm_output),
    ("mpi_frame", mpi_frame),
    ("disk_header", disk_header),
    ("disk_tables", disk_tables),
    ("disk_boot", disk_boot),
    ("disk_entry", disk_entry),
    ("disk_archive", disk_archive),
    ("appliance", appliance),
    ("extents", extents),
    ("kept_map", kept_map),
    ("tunnel_datagram", tunnel_datagram),
    ("cluster_record", cluster_record),
    ("invitation", invitation),
    ("io_list", io_list),
    ("vnc_client", vnc_client),
];

/// What floe-mpirun, its launcher and its clones say to each other.
pub fn mpi_frame(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some((frame, length))) = floe_guest::mpi::wire::decode(rest) {
        assert_eq!(frame.encode(), &rest[..length]);
        rest = &rest[length..];
    }
    let _ = floe_guest::mpi::wire::read(&mut &data[..]);
}

/// What a program in a guest says to its agent, the agent to the node, and both back: lines with one form each.
pub fn guest_message(data: &[u8]) {
    for line in Lines::default().feed(data).into_iter().flatten() {
        if let Ok(accepted) = Line::decode(&line) {
            assert_eq!(accepted.encode(), [&line[..], b"\n"].concat());
        }
        if let Ok(message) = ToHost::decode(&line) {
            assert_eq!(ToHost::decode(&message.encode()), Ok(message));
        }
        if let Ok(message) = ToGuest::decode(&line) {
            assert_eq!(ToGuest::decode(&message.encode()), Ok(message));
        }
        if let Ok(call) = Call::decode(&line) {
            assert_eq!(Call::decode(&call.encode()), Ok(call));
        }
        if let Ok(answer) = Answer::decode(&line) {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }
}

/// Frames of processes in guests, whatever a guest or a node makes of them: one form each, and neither end panics.
pub fn exec_frame(data: &[u8]) {
    use floe_guest::exec::frame::{Channel, Frame, Message, Messages};
    use floe_guest::exec::mux::{Mux, Side};
    use floe_guest::exec::request::Request;
    let (mut node, mut guest) = (Mux::new(Side::Node), Mux::new(Side::Guest));
    for stream in 1..4 {
        node.open(stream, stream == 1, Vec::new());
    }
    for message in Messages::default().feed(data) {
        let Message::Frame(Ok(frame)) = message else {
            continue;
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        assert_eq!(Frame::decode(&bytes[1..bytes.len() - 1]), Ok(frame.clone()));
        if let Frame::Open { request, .. } = &frame
            && let Some(accepted) = Request::decode(request)
        {
            assert_eq!(accepted.encode().as_ref(), Some(request));
        }
        for mux in [&mut node, &mut guest] {
            let _ = mux.received(frame.clone());
            for stream in 1..4 {
                for channel in Channel::ALL {
                    mux.send(stream, channel, b"more");
                    mux.consumed(stream, channel, 1 << 16);
                }
            }
            let mut out = Vec::new();
            while mux.next(&mut out) {}
        }
    }
}

/// An archive that a guest sends for a copy: whatever is in it, nothing beside the target is touched.
pub fn copy_archive(data: &[u8]) {
    use floe_guest::copy::{Form, Place, pieces, receive};
    use std::io::Write;
    let Ok(dir) = tempfile::tempdir() else { return };
    let target = dir.path().join("target");
    let mut stream = Vec::new();
    let mut out = pieces::Writer::new(&mut stream);
    let _ = out.write_all(data).and_then(|()| out.finish());
    let place = Place {
        target: &target,
        name: "x",
        special_bits: false,
    };
    let done = receive(&stream[..], Form::Archive, &place, &mut |_, _| ());
    let left = std::fs::read_dir(dir.path()).map(|entries| entries.count());
    assert_eq!(left.ok(), Some(usize::from(done.is_ok())));
}

/// Accepted manifests have one encoding.
pub fn manifest(data: &[u8]) {
    if let Ok(m) = Manifest::decode(data) {
        assert_eq!(m.encode(), data);
        // what its labels say of the guest in it is within its hardware
        let all = m.config.memory_bytes_now().unwrap_or_default();
        let given = inventory::given::Given::in_labels(&m.config).of(&m.config);
        assert!(given.cpus >= 1 && given.memory_bytes <= all);
        let small = inventory::small::Small::of_image(&m.config);
        assert!(all == 0 || small.memory.is_none_or(|bytes| bytes <= all));
    }
}

/// Accepted segments have one encoding.
pub fn segment(data: &[u8]) {
    if let Ok(s) = Segment::decode(data) {
        assert_eq!(s.encode(), data);
    }
}

/// 8 bytes of index offset, then an index. Every item listed is found where the index says.
pub fn pack_index(data: &[u8]) {
    let Some((offset, index)) = data.split_first_chunk::<8>() else {
        return;
    };
    let index_offset = u64::from_le_bytes(*offset);
    let pack = PackRef {
        id: Hash::of(index),
        index_offset,
        index_bytes: index.len() as u32,
        file_bytes: index_offset
            .wrapping_add(index.len() as u64)
            .wrapping_add(PACK_FOOTER_BYTES),
        root: None,
    };
    if let Ok(index) = PackIndex::decode(index, &pack) {
        for hash in index.hashes() {
            let at = index.lookup(hash).expect("a listed item is found");
            assert_eq!(index.frame_hashes(at.frame)[usize::from(at.slot)], *hash);
        }
        assert!(
            index
                .frames()
                .iter()
                .all(|f| f.offset + u64::from(f.len) <= index_offset)
        );
    }
}

/// A whole pack file, read as a source reads it: footer, index, frames.
pub fn pack_file(data: &[u8]) {
    let Some(at) = data.len().checked_sub(PACK_FOOTER_BYTES as usize) else {
        return;
    };
    let Ok(pack) = PackRef::from_footer(&data[at..], data.len() as u64) else {
        return;
    };
    let index = &data[pack.index_offset as usize..][..pack.index_bytes as usize];
    let Ok(index) = PackIndex::decode(index, &pack) else {
        return;
    };
    for f in index.frames() {
        let bytes = &data[f.offset as usize..][..f.len as usize];
        if let Ok(raw) = decompress_frame(f.kind, bytes, f.items.into()) {
            assert_eq!(raw.len(), usize::from(f.items) * f.kind.raw_size());
        }
    }
}

/// First byte: kind and number of items; then a frame. Never more bytes out than promised.
pub fn frame(data: &[u8]) {
    let Some((&head, bytes)) = data.split_first() else {
        return;
    };
    let kind = if head & 0x80 == 0 {
        Kind::Chunk
    } else {
        Kind::Segment
    };
    let items = usize::from(head & 0x1f);
    if let Ok(raw) = decompress_frame(kind, bytes, items) {
        assert_eq!(raw.len(), items * kind.raw_size());
    }
}

/// Accepted layouts have one encoding.
pub fn layout(data: &[u8]) {
    if let Ok(l) = Layout::decode(data) {
        assert_eq!(l.encode(), data);
    }
}

/// Accepted requests have one encoding.
pub fn batch_request(data: &[u8]) {
    if let Ok(r) = ReadRequest::decode(data) {
        assert_eq!(r.encode(), data);
    }
}

/// First byte: size of the pieces in which the response arrives. Pieces change nothing.
pub fn batch_response(data: &[u8]) {
    let Some((&piece, bytes)) = data.split_first() else {
        return;
    };
    let read = |piece: usize| {
        let mut decoder = ResponseDecoder::new(64);
        let mut records = Vec::new();
        for part in bytes.chunks(piece) {
            decoder.feed(part);
            loop {
                match decoder.next_record() {
                    Ok(Some(record)) => records.push(record),
                    Ok(None) => break,
                    Err(_) => return (records, false),
                }
            }
        }
        (records, decoder.is_complete())
    };
    assert_eq!(read(usize::from(piece) + 1), read(bytes.len().max(1)));
}

/// Accepted datagrams have one encoding, encrypted or not. Most damage stops at the seal, so bytes without one are read, too, and what
/// they are comes out of the seal again.
pub fn datagram(data: &[u8]) {
    use floe_image::datagram::{DATAGRAM_BYTES_MAX, Datagram, GroupKey, GroupSealer};
    let rest = RestKey::of("a machine's key");
    assert!(rest.open(data).is_err(), "nobody has sealed this");
    assert_eq!(rest.open(&rest.seal(data)).as_deref(), Ok(data));
    let key = GroupKey::of("a group's token");
    let opened = key.open(data);
    for bytes in [Ok(data), opened.as_deref()].into_iter().flatten() {
        match Datagram::decode(bytes) {
            Ok(Datagram::Ask(ask)) => assert_eq!(ask.encode(), bytes),
            Ok(Datagram::Piece(piece)) => assert_eq!(piece.encode(), bytes),
            Err(_) => continue,
        }
        if let Some(sealed) = GroupSealer::new(key, [7; 8]).seal(bytes)
            && sealed.len() <= DATAGRAM_BYTES_MAX
        {
            assert_eq!(key.open(&sealed).as_deref(), Ok(bytes));
        }
    }
}

/// What a host sends comes out at the others; what anybody else sends does not.
pub fn tunnel_datagram(data: &[u8]) {
    use floe_image::tunnel::{TunnelHeader, TunnelKey, TunnelSealer, Window};
    let key = TunnelKey::of("a family's secret");
    if let Ok(header) = TunnelHeader::decode(data) {
        assert!(key.open(&header, data).is_err(), "nobody has sealed this");
        let mut window = Window::default();
        window.takes(header.number);
        assert!(!window.takes(header.number));
    }
    if let Some(sealed) = TunnelSealer::new(&key, 7, [7; 16]).seal(data) {
        let header = TunnelHeader::decode(&sealed).expect("it was just sealed");
        assert_eq!(key.open(&header, &sealed).as_deref(), Ok(data));
    }
}

/// What is read of a trace is written again as the same bytes.
pub fn trace(data: &[u8]) {
    let Ok(mut reader) = TraceReader::new(data) else {
        return;
    };
    let mut w = TraceWriter::new(Vec::new(), reader.header()).expect("the header was read");
    for access in reader.by_ref() {
        w.push(access).expect("a Vec takes everything");
    }
    assert_eq!(w.into_inner(), data[..reader.valid_bytes()]);
}

/// Accepted models have one encoding. Most damage stops at the checksum, so the damaged bytes are also read with a right one.
pub fn model(data: &[u8]) {
    let mut mended = data[..data.len().saturating_sub(32)].to_vec();
    let checksum = Hash::of(&mended);
    mended.extend_from_slice(&checksum.0);
    for bytes in [data, &mended] {
        if let Ok(m) = Model::decode(bytes) {
            assert_eq!(m.encode(), bytes);
        }
    }
}

/// A kernel's description of its types: what floe's scheduler looks for is found in it, or not.
pub fn kernel_types(data: &[u8]) {
    let Ok(types) = floe_scx::btf::Btf::parse(data.to_vec()) else {
        return;
    };
    let _ = (types.offset("outer__in__b"), types.function("call"));
    for id in ["inner", "outer"]
        .map(|name| types.structure(name))
        .into_iter()
        .flatten()
    {
        let _ = (types.size(id), types.field(id, "in"));
    }
}

/// A trace from anywhere, from its bytes to a model that can be read again.
pub fn zero_trace(data: &[u8]) {
    let Ok(reader) = TraceReader::new(data) else {
        return;
    };
    let image = reader.header().image;
    let zero = ZeroTrace::from_reader(reader);
    assert!(zero.accesses.windows(2).all(|w| w[0].t_us <= w[1].t_us));
    for method in Method::ALL {
        let model = train(
            method,
            &image,
            std::slice::from_ref(&zero),
            &TrainOptions::default(),
        );
        assert_eq!(Model::decode(&model.encode()).as_ref(), Ok(&model));
    }
}

/// Accepted names are relative paths that stay where they are.
pub fn name(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = text.parse::<Hash>();
    if let Ok(name) = ImageName::parse(text) {
        assert_eq!(ImageName::parse(&name.to_string()).as_ref(), Ok(&name));
        let path = format!("{}/{}", name.name(), name.tag());
        assert!(
            !path.starts_with('/')
                && path
                    .split('/')
                    .all(|p| !p.is_empty() && !p.starts_with('.'))
        );
    }
}

/// A redirect that is followed leads to the web, not out of https, not into this host, and with no password; one that is not says why
/// without what may be secret.
pub fn redirect(data: &[u8]) {
    let Ok(value) = floe_http::HeaderValue::from_bytes(data) else {
        return;
    };
    let mut headers = floe_http::HeaderMap::new();
    headers.insert(floe_http::header::LOCATION, value);
    let from = floe_http::Url::parse("https://hub.example/base/x?name=web").expect("a URL");
    match floe_http::redirected(&from, &headers) {
        Ok(to) => {
            assert!(to.scheme() == "https" && to.username().is_empty() && to.password().is_none());
            let at = floe_http::socket_address(&to);
            assert!(at.is_none_or(|at| !at.ip().to_canonical().is_loopback()));
        }
        Err(why) => assert!(!why.contains('?'), "{why}"),
    }
}

/// What a tag's file says is an image and a time, and written again it says the same.
pub fn tag_file(data: &[u8]) {
    if let Some((id, time)) = floe_store::parse_tag_file(data) {
        let again = format!("{id} {time}\n");
        assert_eq!(
            floe_store::parse_tag_file(again.as_bytes()),
            Some((id, time))
        );
    }
}

/// A guest's video memory shows something or nothing, and nothing only if there is nothing but zeroes and spaces where text stands.
pub fn video_memory(data: &[u8]) {
    let found = shown::shown(data);
    if data.iter().all(|byte| *byte == 0) {
        assert_eq!(found, shown::Shown::Nothing);
    }
    if found == shown::Shown::Nothing {
        let is_empty = |cell: &[u8]| matches!(cell[0], 0 | b' ' | b'\t'..=b'\r');
        assert!(data.chunks_exact(4).take(16 << 10).all(is_empty));
    }
}

/// A line from QEMU is understood or refused, and a refusal quotes little of it.
pub fn qmp_line(data: &[u8]) {
    if let Err(error) = qmp::parse(data) {
        assert!(error.excerpt.chars().count() <= 80, "{error}");
    }
}

/// A line from the guest is understood or refused.
pub fn agent_line(data: &[u8]) {
    if let Ok(qga::Answer::Error(text)) = qga::parse(data) {
        assert!(text.len() <= data.len());
    }
}

/// A request from the kernel, its body read as that of each kind.
pub fn fuse_request(data: &[u8]) {
    let Some((header, body)) = fuse::parse(data) else {
        return;
    };
    assert_eq!(body.len() + fuse::IN_HEADER_BYTES, header.len as usize);
    let _ = (
        fuse::parse_init(body),
        fuse::parse_read(body),
        fuse::parse_setattr(body),
    );
    let _ = (fuse::parse_fallocate(body), fuse::parse_interrupt(body));
    if let Some(name) = fuse::parse_name(body) {
        assert!(!name.contains('\0') && name.len() < body.len());
    }
    if let Some((_, _, written)) = fuse::parse_write(body) {
        assert!(written.len() + fuse::WRITE_IN_BYTES <= body.len());
    }
}
