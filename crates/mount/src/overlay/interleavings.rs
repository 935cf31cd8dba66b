//! Tests with loom every order in which writers and flushes of a layer can meet, including those that only a processor with
//! weak ordering allows. The code under test is `marks.rs` itself, compiled with loom's atomics.
//!
//! The files are modelled by relaxed atomics, which order nothing by themselves: what a flush must see, it sees by the marks
//! alone.

/// Where `marks.rs` takes its atomics from.
mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
}

#[path = "marks.rs"]
#[allow(clippy::duplicate_mod, reason = "the same code with other atomics")]
mod marks;

use loom::sync::Arc;
use loom::thread;
use marks::Marks;
use std::convert::Infallible;
use sync::{AtomicU8, Ordering};

/// A layer of one chunk. Each writer sets one bit of the data.
struct Layer {
    marks: Marks,
    cell: AtomicU8,
    data: AtomicU8,
    durable_data: AtomicU8,
    durable_map: AtomicU8,
}

impl Layer {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            marks: Marks::new(1),
            cell: AtomicU8::new(0),
            data: AtomicU8::new(0),
            durable_data: AtomicU8::new(0),
            durable_map: AtomicU8::new(0),
        })
    }

    /// Writes as `Layer::write` does: first the data, then the marks.
    fn write(&self, writer: u8, sectors: u8) {
        self.data.fetch_or(writer, Ordering::Relaxed);
        let written = (0, &self.cell, sectors);
        self.marks.mark(std::iter::once(written));
    }

    /// Flushes as `Layer::flush` does: reads the bits, makes the data durable, then the bits.
    fn flush(&self) {
        let done = self.marks.flush(|pages| {
            let bits = self.cell.load(Ordering::Acquire);
            let data = self.data.load(Ordering::Relaxed);
            self.durable_data.fetch_or(data, Ordering::Relaxed);
            if !pages.is_empty() {
                self.durable_map.fetch_or(bits, Ordering::Relaxed);
            }
            Ok::<_, Infallible>(())
        });
        done.unwrap();
    }

    fn write_and_flush(&self, writer: u8, sectors: u8) {
        self.write(writer, sectors);
        self.flush();
        let data = self.durable_data.load(Ordering::Relaxed);
        assert!(
            data & writer == writer,
            "the data of {writer} is not durable"
        );
        let map = self.durable_map.load(Ordering::Relaxed);
        assert!(
            map & sectors == sectors,
            "the map of {writer} is not durable"
        );
    }
}

#[test]
fn a_flush_makes_durable_what_another_writer_is_still_marking() {
    loom::model(|| {
        let layer = Layer::new();
        let other = layer.clone();
        let writer = thread::spawn(move || other.write(1, 0b1));
        layer.write_and_flush(2, 0b1);
        writer.join().unwrap();
    });
}

#[test]
fn a_flush_that_runs_beside_a_write_leaves_it_to_the_next() {
    loom::model(|| {
        let layer = Layer::new();
        let other = layer.clone();
        let flush = thread::spawn(move || other.flush());
        layer.write_and_flush(1, 0b1);
        flush.join().unwrap();
    });
}

#[test]
fn two_writers_that_flush_beside_a_third_flush_are_both_durable() {
    let mut model = loom::model::Builder::new();
    // Three preemptions at any places: all orders of three threads would take many minutes. The tests of two threads have no
    // bound.
    model.preemption_bound = Some(3);
    model.check(|| {
        let layer = Layer::new();
        let (one, two) = (layer.clone(), layer.clone());
        let writer = thread::spawn(move || one.write_and_flush(1, 0b1));
        let flush = thread::spawn(move || two.flush());
        layer.write_and_flush(2, 0b11);
        writer.join().unwrap();
        flush.join().unwrap();
    });
}

#[test]
fn a_flush_that_failed_leaves_everything_to_the_next() {
    loom::model(|| {
        let layer = Layer::new();
        let other = layer.clone();
        let failing = thread::spawn(move || {
            let _ = other.marks.flush(|_| Err(()));
        });
        layer.write_and_flush(1, 0b1);
        failing.join().unwrap();
        // What the failing flush took is there again for this one.
        layer.flush();
        assert_eq!(layer.durable_map.load(Ordering::Relaxed), 0b1);
    });
}
