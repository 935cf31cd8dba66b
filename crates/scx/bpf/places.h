/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
 *
 * Who is a vCPU, at which core each counts, and what moves between cores.
 */
#pragma once
#include "model.h"

INLINE void release(struct task *t)
{
	struct gang *g = get_gang(t->gang);
	s32 at = t->claim;

	t->claim = NOWHERE;
	if (g && is_core(at))
		__sync_fetch_and_add(on_core(g, at), -1);
}

/* Counts a task at a core. Returns whether no sibling was there before; if one was and `alone`, it is not counted. */
INLINE bool claim(struct task *t, s32 cpu, bool alone)
{
	struct gang *g = get_gang(t->gang);

	s32 *on;
	bool first;

	if (!g || !is_core(cpu))
		return 1;
	on = on_core(g, cpu);
	if (t->claim == cpu)
		return *on <= 1;
	first = __sync_fetch_and_add(on, 1) <= 0;
	if (!first && alone) {
		__sync_fetch_and_add(on, -1);
		return 0;
	}
	release(t);
	t->claim = cpu;
	return first;
}

INLINE void recognise(struct task_struct *p, struct task *t)
{
	struct settings *s = get_settings();
	u32 tid = tid_of(p);
	struct vcpu *vcpu;
	u32 gang;

	if (!s || t->epoch == s->epoch)
		return;
	t->epoch = s->epoch;
	vcpu = bpf_map_lookup_elem(&vcpus, &tid);
	gang = vcpu && vcpu->gang <= GANGS ? vcpu->gang : 0;
	if (gang == t->gang)
		return;
	release(t);
	t->gang = gang;
}

/* Where a task goes: where the fewest siblings are, then the shortest queue, then where it was. */
INLINE void place(struct task_struct *p, struct task *t, s32 before)
{
	struct gang *g = get_gang(t->gang);
	struct state *s = get_state();
	struct bpf_iter_num it;
	int *i;

	t->best = before;
	t->rank = 0xffffffff;
	bpf_iter_num_new(&it, 0, s ? s->cores : 0);
	while ((i = bpf_iter_num_next(&it))) {
		s32 cpu = *i;
		struct core *c = get_core(cpu);
		u32 rank;

		if (!c || !c->online || !allowed(p, cpu))
			continue;
		rank = (scx_bpf_dsq_nr_queued(cpu) + (c->since != 0)) << 2 | (cpu != before);
		if (g)
			rank += (u32)(*on_core(g, cpu) - (t->claim == cpu)) << 20;
		if (rank < t->rank) {
			t->rank = rank;
			t->best = cpu;
		}
	}
	bpf_iter_num_destroy(&it);
}

/* The same, and counts it there. Siblings that look at the same time don't take the same core. */
INLINE s32 settle_at(struct task_struct *p, struct task *t, s32 before)
{
	struct bpf_iter_num it;
	int *i;

	bpf_iter_num_new(&it, 0, TRIES);
	while ((i = bpf_iter_num_next(&it))) {
		place(p, t, before);
		if (!t->gang || claim(t, t->best, *i < TRIES - 1))
			break;
	}
	bpf_iter_num_destroy(&it);
	return t->best;
}

/* Virtual times of cores go on at different paces: what counts is how far from its core's a task is. */
INLINE void moves_to(struct task *t, s32 cpu)
{
	struct core *from, *to;

	if (t->at == cpu)
		return;
	from = get_core(t->at);
	to = get_core(cpu);
	if (from && to)
		add(&t->vtime, to->now - from->now);
	t->at = cpu;
}

/* Takes one task from a queue for this core: one that may run here and has no sibling here. */
INLINE bool take_from(s32 from, s32 here, struct state *s)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	bool got = 0;

	if (!bpf_iter_scx_dsq_new(&it, from, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it))) {
			struct task *t = get_task(p);

			if (!t || !allowed(p, here) || !claim(t, here, 1))
				continue;
			scx_bpf_dsq_move_set_slice(&it, SLICE_NS);
			/* if somebody else has just taken it, it is counted where it runs as soon as it does */
			if (scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0)) {
				add(&s->moved, 1);
				got = 1;
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return got;
}

/* Takes a task from any queue of at least so many. */
INLINE bool steal(s32 here, u32 least, struct state *s)
{
	struct bpf_iter_num it;
	bool got = 0;
	int *i;

	bpf_iter_num_new(&it, 0, s->cores);
	while ((i = bpf_iter_num_next(&it))) {
		s32 cpu = here + 1 + *i;

		if (cpu >= (s32)s->cores)
			cpu -= s->cores;
		if (cpu == here || scx_bpf_dsq_nr_queued(cpu) < (s32)least)
			continue;
		if (take_from(cpu, here, s)) {
			got = 1;
			break;
		}
	}
	bpf_iter_num_destroy(&it);
	return got;
}
