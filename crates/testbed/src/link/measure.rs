//! Measures whether a link behaves as configured, from outside, with ordinary UDP sockets in its two namespaces.
use super::{Bridge, Namespace, sys};
use crate::harness::Samples;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// UDP payload that fills an IP packet of 1500 bytes.
const FULL_PAYLOAD: usize = 1472;
/// IP and UDP headers, in bytes, which the link counts and the socket does not.
const HEADERS: usize = 28;
/// The sender offers this many times the rate, so that the queue is never empty.
const OVERLOAD: f64 = 1.3;
/// The beginning of a rate measurement, in which the queue fills, is left out.
const WARM_UP: Duration = Duration::from_millis(500);
/// Time between packets of a delay measurement, so that none of them waits for another.
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// Makes two connected sockets: one that sends from `from`, one that receives in `to`.
fn sockets(
    from: &Namespace,
    to: &Namespace,
    receiver: SocketAddr,
) -> io::Result<(UdpSocket, UdpSocket)> {
    let inlet = to.run(|| UdpSocket::bind(receiver))??;
    inlet.set_read_timeout(Some(Duration::from_millis(500)))?;
    let outlet = from.run(|| UdpSocket::bind("0.0.0.0:0"))??;
    outlet.connect(receiver)?;
    Ok((outlet, inlet))
}

/// Returns the bits per second, of IP packets, that pass from near to far over `time` while more than `promised` are
/// offered.
pub fn rate(bridge: &Bridge, promised_bits_per_s: f64, time: Duration) -> io::Result<f64> {
    let (outlet, inlet) = sockets(
        &bridge.ends.near,
        &bridge.ends.far,
        (Bridge::FAR, 7101).into(),
    )?;
    let end = Instant::now() + WARM_UP + time;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::exact_timers();
            let (start, payload, mut sent) = (Instant::now(), [0u8; FULL_PAYLOAD], 0usize);
            while Instant::now() < end {
                let due = start.elapsed().as_secs_f64() * promised_bits_per_s * OVERLOAD / 8.0;
                while (sent as f64) < due {
                    // If the device's queue is full, the load is high enough.
                    let _ = outlet.send(&payload);
                    sent += FULL_PAYLOAD + HEADERS;
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let mut buffer = [0u8; 2048];
        let (mut first, mut last, mut bytes) = (None, Instant::now(), 0);
        while Instant::now() < end {
            let Ok(length) = inlet.recv(&mut buffer) else {
                continue;
            };
            last = Instant::now();
            match first {
                None if last + time < end => {}
                // Counting starts when the first packet has arrived.
                None => first = Some(last),
                Some(_) => bytes += length + HEADERS,
            }
        }
        let first = first
            .ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "no packet crossed the link"))?;
        Ok(bytes as f64 * 8.0 / (last - first).as_secs_f64())
    })
}

/// Sends `n` single small packets from near to far and returns their one-way times in nanoseconds. Each time includes the
/// transmission of the packet's own bits at the link's rate.
pub fn delay(bridge: &Bridge, n: usize) -> io::Result<Samples> {
    let (outlet, inlet) = sockets(
        &bridge.ends.near,
        &bridge.ends.far,
        (Bridge::FAR, 7102).into(),
    )?;
    let epoch = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..n {
                let _ = outlet.send(&(epoch.elapsed().as_nanos() as u64).to_le_bytes());
                std::thread::sleep(PROBE_EVERY);
            }
        });
        let mut times = Samples::default();
        let mut buffer = [0u8; 64];
        while times.len() < n {
            let Ok(8) = inlet.recv(&mut buffer) else {
                break;
            };
            let sent =
                u64::from_le_bytes(buffer[..8].try_into().expect("eight bytes were received"));
            times.push((epoch.elapsed().as_nanos() as u64 - sent) as f64);
        }
        Ok(times)
    })
}

/// Bytes on the wire of the packets that [`delay`] sends.
pub const PROBE_BYTES: usize = 8 + HEADERS;
