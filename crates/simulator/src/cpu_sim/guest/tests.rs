//! What the guest promises, event by event.

use super::*;

const VCPUS: usize = 4;

/// A guest with a thread on each vCPU, all of which have a core and compute.
fn busy(workload: Workload, kind: LockKind, random: &mut Random) -> Guest {
    let mut guest = Guest::new(workload, VCPUS, kind);
    for at in 0..VCPUS {
        guest.begins(at);
        guest.act(at, 0, random);
    }
    guest
}

/// A thread blocks, and its vCPU does what comes next.
fn blocks(guest: &mut Guest, at: usize, random: &mut Random) {
    guest.leave(at);
    guest.act(at, 0, random);
}

/// Which vCPUs spin for a lock.
fn spin(guest: &Guest) -> Vec<usize> {
    let spins = |at: &usize| matches!(guest.vcpus[*at].doing, Doing::Spins(Spin::Lock(_), _));
    (0..VCPUS).filter(spins).collect()
}

#[test]
fn a_ticket_lock_stands_still_while_its_holder_or_who_comes_next_has_no_core() {
    let kinds: [(LockKind, &[usize]); 2] = [(LockKind::Queued, &[2, 3]), (LockKind::Unfair, &[])];
    for (kind, after) in kinds {
        let mut random = Random::new(1);
        let mut guest = busy(Workload::Pi, kind, &mut random);
        // there is one lock, and whoever is stopped while it computes holds it
        guest.locks = Locks {
            per_s: 1e6,
            hold_ns: 1e3,
            count: 1,
        };
        guest.stopped(0, false, &mut random);
        for at in 1..VCPUS {
            guest.meets_lock(at, &mut random);
        }
        assert_eq!(spin(&guest), [1, 2, 3], "{kind:?}: the holder has no core");
        guest.stopped(1, false, &mut random);
        guest.begins(0);
        assert_eq!(spin(&guest), after, "{kind:?}: the next one has no core");
        guest.begins(1);
        assert!(spin(&guest).is_empty(), "{kind:?}");
    }
}

#[test]
fn a_thread_wakes_on_its_last_vcpu_or_on_one_that_halts() {
    let mut random = Random::new(1);
    let mut guest = busy(Workload::Pi, LockKind::Unfair, &mut random);
    blocks(&mut guest, 1, &mut random);
    blocks(&mut guest, 2, &mut random);
    assert_eq!(guest.vcpus[2].doing, Doing::Halts);
    // vCPU 1 halts, too, and comes before
    guest.make_ready(2);
    assert_eq!(guest.wishes.pop(), Some(Wish::Wake(2)));
    // its last vCPU computes
    guest.last[1] = 0;
    guest.make_ready(1);
    assert_eq!(guest.wishes.pop(), Some(Wish::Wake(1)));
    assert!(guest.wishes.is_empty());
}

#[test]
fn a_vcpu_without_a_core_keeps_its_only_thread_whoever_is_free() {
    let mut random = Random::new(1);
    let mut guest = busy(Workload::Pi, LockKind::Unfair, &mut random);
    blocks(&mut guest, 2, &mut random);
    guest.vcpus[2].on_core = false;
    guest.make_ready(2);
    blocks(&mut guest, 3, &mut random);
    assert_eq!(guest.vcpus[3].doing, Doing::Halts);
    guest.begins(2);
    guest.act(2, 0, &mut random);
    assert_eq!(guest.vcpus[2].thread, Some(2));
}

#[test]
fn who_has_no_thread_takes_one_that_waits_behind_another() {
    let mut random = Random::new(1);
    let mut guest = busy(Workload::Pi, LockKind::Unfair, &mut random);
    guest.leave(1);
    guest.last[1] = 0;
    guest.make_ready(1);
    assert_eq!(guest.wishes, [Wish::Changed(0)]);
    assert_eq!(guest.next_ns(0, &mut random), (GUEST_SLICE_NS, false));
    guest.act(1, 0, &mut random);
    assert_eq!(guest.vcpus[1].thread, Some(1));
}

#[test]
fn who_spins_at_a_barrier_leaves_its_vcpu_to_a_thread_that_waits_there() {
    let mut random = Random::new(1);
    let mut guest = busy(Workload::Npb, LockKind::Unfair, &mut random);
    guest.perform(0, 0, Op::Barrier(0), 0);
    guest.leave(1);
    guest.last[1] = 0;
    guest.make_ready(1);
    guest.ran(0, GUEST_SLICE_NS);
    guest.act(0, 0, &mut random);
    assert_eq!(guest.vcpus[0].thread, Some(1));
}

#[test]
fn who_waits_for_a_sleeping_lock_leaves_its_vcpu() {
    let mut random = Random::new(1);
    let mut guest = busy(Workload::Pi, LockKind::Unfair, &mut random);
    guest.perform(0, 0, Op::Write, 0);
    guest.stopped(0, true, &mut random);
    guest.perform(1, 1, Op::Read, 0);
    guest.act(1, 0, &mut random);
    let vcpu = &guest.vcpus[1];
    assert_eq!((vcpu.doing, vcpu.thread), (Doing::Halts, None));
    guest.begins(0);
    guest.perform(0, 0, Op::Release, 0);
    assert_eq!(guest.wishes, [Wish::Wake(1)]);
    guest.act(1, 0, &mut random);
    assert_eq!(guest.vcpus[1].thread, Some(1));
    assert_eq!(guest.spun_ns, [0; 3]);
}
