//! How long a demand takes while its connection is full of prefetch: two hosts, a link of 100 Mbit/s, and what could carry pieces between
//! them. All engines in turn, with the same pieces and settings, and without what `crates/peers` decides: only what an engine does by itself.
use crate::harness::{Context, Report, Samples, cpu_times};
use crate::link::Segment;
use anyhow::{Context as _, anyhow};
use iroh::endpoint::{QuicTransportConfig, VarInt, presets};
use noq_proto::congestion::Bbr3Config;
use quinn::congestion::BbrConfig;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// What each host sends and receives at most, in bits a second.
const LINK_BITS_PER_S: u64 = 100_000_000;
/// Prefetched pieces that are asked for and have not come, all the time.
const AHEAD: usize = 32;
/// For how long nothing but prefetch comes first, until the link is full.
const WARMING: Duration = Duration::from_secs(2);
/// Between one demand's answer and the next demand, in milliseconds: at random, since prefetch has a rhythm.
const PAUSE_MS: std::ops::Range<u64> = 50..150;
/// A run that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(120);
/// The sender's port.
const PORT: u16 = 4433;
/// The sender's private key, where an engine wants one.
const SECRET: [u8; 32] = [7; 32];
/// The name in the sender's certificate, where an engine wants one.
const NAME: &str = "floe";
const ALPN: &[u8] = b"floe/lab";

/// Purposes of a piece: what is asked for, and the first byte of what comes.
const PREFETCH: u8 = 0;
const DEMAND: u8 = 1;

/// Settings of `crates/peers`, in both engines.
const STREAMS: u32 = 64;
const STREAM_WINDOW: u32 = 128 << 10;
const WINDOW: u32 = 4 << 20;
/// What iroh asks of the kernel for its sockets, in bytes.
const SOCKET_BYTES: usize = 7 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    Iroh,
    Quinn,
}

/// What decides how much is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    Cubic,
    /// The engine's newest BBR.
    Bbr,
}

#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    engine: Engine,
    control: Control,
}

/// The first is what `crates/peers` runs on, the second what it may run on.
const VARIANTS: [Variant; 4] = [
    Variant {
        name: "iroh-cubic",
        engine: Engine::Iroh,
        control: Control::Cubic,
    },
    Variant {
        name: "quinn-cubic",
        engine: Engine::Quinn,
        control: Control::Cubic,
    },
    Variant {
        name: "iroh-bbr",
        engine: Engine::Iroh,
        control: Control::Bbr,
    },
    Variant {
        name: "quinn-bbr",
        engine: Engine::Quinn,
        control: Control::Bbr,
    },
];

/// Sizes of pieces that are measured, with their names.
const PIECES: [(&str, usize); 2] = [("64k", 64 << 10), ("16k", 16 << 10)];

/// What one run does.
#[derive(Clone, Copy)]
struct Plan {
    piece_bytes: usize,
    ahead: usize,
    warming: Duration,
    demands: usize,
    seed: u64,
}

/// What one run has shown.
#[derive(Default)]
struct Told {
    demands_ms: Vec<f64>,
    prefetched: usize,
    seconds: f64,
}

/// What all runs of a variant with one size of pieces have shown.
#[derive(Clone, Default)]
struct Row {
    demands_ms: Samples,
    idle_ms: Samples,
    prefetch_mb_per_s: Samples,
    cpu_s: Samples,
}

/// Both engines' connections have the same methods, and types of their own.
macro_rules! exchange {
    ($room:ident, $connection:ty) => {
        mod $room {
            use super::{DEMAND, PAUSE_MS, PREFETCH, Plan, Told};
            use anyhow::Context as _;
            use bytes::Bytes;
            use rand::rngs::StdRng;
            use rand::{Rng, SeedableRng};
            use std::time::{Duration, Instant};
            use tokio::sync::mpsc;
            use tokio::time::sleep_until;

            /// Sends what is asked for, each piece on a stream of its own, until the other host closes the connection.
            pub(super) async fn give(
                connection: $connection,
                piece_bytes: usize,
            ) -> anyhow::Result<()> {
                let piece = Bytes::from(vec![0x5A; piece_bytes]);
                let (_, mut asks) = connection.accept_bi().await?;
                let mut purpose = [0u8];
                while asks.read_exact(&mut purpose).await.is_ok() {
                    let (connection, piece) = (connection.clone(), piece.clone());
                    tokio::spawn(async move {
                        let mut stream = connection.open_uni().await?;
                        stream.set_priority(purpose[0].into())?;
                        stream.write_all(&purpose).await?;
                        stream.write_chunk(piece).await?;
                        stream.finish()?;
                        anyhow::Ok(())
                    });
                }
                Ok(())
            }

            /// Keeps prefetches asked for, and asks for a demand from time to time.
            pub(super) async fn take(connection: $connection, plan: Plan) -> anyhow::Result<Told> {
                let (mut asks, _) = connection.open_bi().await?;
                let (came, mut comes) = mpsc::unbounded_channel();
                let streams = connection.clone();
                tokio::spawn(async move {
                    while let Ok(mut stream) = streams.accept_uni().await {
                        let came = came.clone();
                        tokio::spawn(async move {
                            let all = stream.read_to_end(1 + plan.piece_bytes).await?;
                            if all.len() == 1 + plan.piece_bytes {
                                came.send(all[0])?;
                            }
                            anyhow::Ok(())
                        });
                    }
                });
                let mut random = StdRng::seed_from_u64(plan.seed);
                let mut told = Told::default();
                asks.write_all(&vec![PREFETCH; plan.ahead]).await?;
                let started = Instant::now();
                let mut due = started + plan.warming;
                let mut asked: Option<Instant> = None;
                while told.demands_ms.len() < plan.demands {
                    tokio::select! {
                        purpose = comes.recv() => match (purpose, asked) {
                            (Some(DEMAND), Some(since)) => {
                                let took = Instant::now() - since;
                                told.demands_ms.push(took.as_secs_f64() * 1e3);
                                let pause = Duration::from_millis(random.random_range(PAUSE_MS));
                                (asked, due) = (None, Instant::now() + pause);
                            }
                            (Some(_), _) => {
                                told.prefetched += 1;
                                asks.write_all(&[PREFETCH]).await?;
                            }
                            (None, _) => return Err(anyhow::anyhow!("the connection has ended")),
                        },
                        () = sleep_until(due.into()), if asked.is_none() => {
                            asked = Some(Instant::now());
                            asks.write_all(&[DEMAND]).await.context("no demand can be asked")?;
                        }
                    }
                }
                told.seconds = started.elapsed().as_secs_f64();
                connection.close(0u32.into(), b"");
                Ok(told)
            }
        }
    };
}

exchange!(over_iroh, iroh::endpoint::Connection);
exchange!(over_quinn, quinn::Connection);

async fn iroh_endpoint(at: SocketAddr, control: Control) -> anyhow::Result<iroh::Endpoint> {
    let mut transport = QuicTransportConfig::builder()
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into());
    if control == Control::Bbr {
        transport = transport.congestion_controller_factory(Arc::new(Bbr3Config::default()));
    }
    let builder = iroh::Endpoint::builder(presets::Minimal)
        .alpns(vec![ALPN.to_vec()])
        .relay_mode(iroh::RelayMode::Disabled)
        .clear_address_lookup()
        .clear_ip_transports()
        .transport_config(transport.build())
        .secret_key(iroh::SecretKey::from_bytes(&match at.port() {
            PORT => SECRET,
            _ => rand::random(),
        }))
        .bind_addr(at)
        .map_err(|error| anyhow!("{error}"))?;
    builder.bind().await.map_err(|error| anyhow!("{error}"))
}

async fn iroh_gives(
    at: SocketAddr,
    control: Control,
    plan: Plan,
    ready: mpsc::Sender<()>,
) -> anyhow::Result<()> {
    let endpoint = iroh_endpoint(at, control).await?;
    ready.send(())?;
    let incoming = endpoint.accept().await.context("nobody came")?;
    let connection = incoming.await.map_err(|error| anyhow!("{error}"))?;
    over_iroh::give(connection, plan.piece_bytes).await?;
    endpoint.close().await;
    Ok(())
}

async fn iroh_takes(
    here: SocketAddr,
    there: SocketAddr,
    control: Control,
    plan: Plan,
) -> anyhow::Result<Told> {
    let endpoint = iroh_endpoint(here, control).await?;
    let sender = iroh::SecretKey::from_bytes(&SECRET).public();
    let address = iroh::EndpointAddr::from_parts(sender, [iroh::TransportAddr::Ip(there)]);
    let connected = endpoint.connect(address, ALPN).await;
    let connection = connected.map_err(|error| anyhow!("{error}"))?;
    let told = over_iroh::take(connection, plan).await?;
    endpoint.close().await;
    Ok(told)
}

/// A certificate and its private key.
#[derive(Clone)]
struct Papers {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Papers {
    fn new() -> anyhow::Result<Papers> {
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
        Ok(Papers {
            certificate: made.cert.der().clone(),
            key: made.signing_key.serialize_der(),
        })
    }
}

fn quinn_transport(control: Control) -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_concurrent_uni_streams(STREAMS.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(WINDOW.into())
        .send_window(WINDOW.into());
    if control == Control::Bbr {
        transport.congestion_controller_factory(Arc::new(BbrConfig::default()));
    }
    Arc::new(transport)
}

fn quinn_endpoint(
    at: SocketAddr,
    server: Option<quinn::ServerConfig>,
) -> anyhow::Result<quinn::Endpoint> {
    let socket = UdpSocket::bind(at)?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES)?;
    let config = quinn::EndpointConfig::default();
    let runtime = Arc::new(quinn::TokioRuntime);
    Ok(quinn::Endpoint::new(config, server, socket, runtime)?)
}

async fn quinn_gives(
    at: SocketAddr,
    control: Control,
    plan: Plan,
    papers: Papers,
    ready: mpsc::Sender<()>,
) -> anyhow::Result<()> {
    let key = PrivatePkcs8KeyDer::from(papers.key).into();
    let mut config = quinn::ServerConfig::with_single_cert(vec![papers.certificate], key)?;
    config.transport_config(quinn_transport(control));
    let endpoint = quinn_endpoint(at, Some(config))?;
    ready.send(())?;
    let connection = endpoint.accept().await.context("nobody came")?.await?;
    over_quinn::give(connection, plan.piece_bytes).await?;
    endpoint.wait_idle().await;
    Ok(())
}

async fn quinn_takes(
    here: SocketAddr,
    there: SocketAddr,
    control: Control,
    plan: Plan,
    papers: Papers,
) -> anyhow::Result<Told> {
    let mut roots = RootCertStore::empty();
    roots.add(papers.certificate)?;
    let mut config = quinn::ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(quinn_transport(control));
    let endpoint = quinn_endpoint(here, None)?;
    let connection = endpoint.connect_with(config, there, NAME)?.await?;
    let told = over_quinn::take(connection, plan).await?;
    endpoint.wait_idle().await;
    Ok(told)
}

/// Drives one host; to be called on a thread in its namespace.
fn drive<T>(host: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    runtime.block_on(async {
        let done = tokio::time::timeout(LIMIT, host).await;
        done.map_err(|_| anyhow!("it took more than {LIMIT:?}"))?
    })
}

/// Lets one host of the segment take from the other.
fn measure(segment: &Segment, variant: Variant, plan: Plan) -> anyhow::Result<Told> {
    let there = SocketAddr::from((segment.address(0), PORT));
    let here = SocketAddr::from((segment.address(1), 0));
    let (papers, control) = (Papers::new()?, variant.control);
    let theirs = papers.clone();
    let (ready, listens) = mpsc::channel();
    std::thread::scope(|scope| {
        let gives = scope.spawn(move || {
            segment.host(0).run(|| match variant.engine {
                Engine::Iroh => drive(iroh_gives(there, control, plan, ready)),
                Engine::Quinn => drive(quinn_gives(there, control, plan, theirs, ready)),
            })
        });
        let told = segment.host(1).run(move || {
            listens.recv().context("the sender does not listen")?;
            match variant.engine {
                Engine::Iroh => drive(iroh_takes(here, there, control, plan)),
                Engine::Quinn => drive(quinn_takes(here, there, control, plan, papers)),
            }
        })?;
        let gave = gives.join().map_err(|_| anyhow!("the sender panicked"))?;
        match (told, gave?) {
            (Ok(told), Ok(())) => Ok(told),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Err(told), Err(gave)) => Err(anyhow!("{told:#}; the sender: {gave:#}")),
        }
    })
    .with_context(|| variant.name)
}

/// Adds the figures of all engines.
pub(super) fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let segment = Segment::new(2).context("hosts of our own need root")?;
    for host in [0, 1] {
        segment.limit(host, LINK_BITS_PER_S)?;
    }
    let mut rows = vec![[Row::default(), Row::default()]; VARIANTS.len()];
    for round in 0..context.pick(3usize, 1) {
        for turn in 0..VARIANTS.len() {
            // who is first changes with each round
            let which = (turn + round) % VARIANTS.len();
            for (size, (_, piece_bytes)) in PIECES.into_iter().enumerate() {
                let idle = Plan {
                    piece_bytes,
                    ahead: 0,
                    warming: Duration::ZERO,
                    demands: context.pick(20, 3),
                    seed: round as u64,
                };
                let full = Plan {
                    ahead: AHEAD,
                    warming: context.pick(WARMING, WARMING / 4),
                    demands: context.pick(100, 10),
                    ..idle
                };
                rows[which][size].add(&segment, VARIANTS[which], idle, full)?;
            }
        }
    }
    let [iroh, quinn, ..] = &rows[..] else {
        return Err(anyhow!("both engines are measured"));
    };
    report
        .add("demand_under_prefetch_ms", "ms", &quinn[0].demands_ms)
        .against("over iroh", "ms", iroh[0].demands_ms.median());
    for (variant, sizes) in VARIANTS.iter().zip(&rows) {
        for ((size, _), row) in PIECES.iter().zip(sizes) {
            row.report(&format!("demand.{}.{size}", variant.name), report);
        }
    }
    report.note(format!(
        "demand.<engine>.<piece>: two hosts, links of {} Mbit/s each way with up to 50 ms of queue; {AHEAD} pieces are asked for ahead all the \
         time and come without priority, a demand at random times with it; its time is from the question to the last byte; processor time of \
         both hosts together",
        LINK_BITS_PER_S / 1_000_000
    ));
    Ok(())
}

impl Row {
    fn add(
        &mut self,
        segment: &Segment,
        variant: Variant,
        idle: Plan,
        full: Plan,
    ) -> anyhow::Result<()> {
        let alone = measure(segment, variant, idle)?;
        let before = cpu_times(std::process::id())?;
        let told = measure(segment, variant, full)?;
        let after = cpu_times(std::process::id())?;
        alone
            .demands_ms
            .into_iter()
            .for_each(|ms| self.idle_ms.push(ms));
        let bytes = (told.prefetched * full.piece_bytes) as f64;
        self.prefetch_mb_per_s.push(bytes / 1e6 / told.seconds);
        self.cpu_s.push((after.own_ms - before.own_ms) / 1e3);
        told.demands_ms
            .into_iter()
            .for_each(|ms| self.demands_ms.push(ms));
        Ok(())
    }

    fn report(&self, name: &str, report: &mut Report) {
        report.add(&format!("{name}.p50_ms"), "ms", &self.demands_ms);
        report.add_quantile(&format!("{name}.p99_ms"), "ms", &self.demands_ms, 0.99);
        report.add(&format!("{name}.idle_ms"), "ms", &self.idle_ms);
        report.add(
            &format!("{name}.prefetch_mb_per_s"),
            "MB/s",
            &self.prefetch_mb_per_s,
        );
        report.add(&format!("{name}.cpu_s"), "s", &self.cpu_s);
    }
}
