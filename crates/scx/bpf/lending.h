/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
 *
 * Lending: sections 4.4.3 and 4.4.4 of the dissertation.
 */
#pragma once
#include "model.h"

/* Gives back what a borrower has not used. */
INLINE void give_back(struct task *t, u64 service_ns)
{
	struct task *lender = get_tid(t->lender);
	struct state *s = get_state();

	if (!service_ns || !s)
		return;
	if (!lender) {
		add(&s->written_off_ns, service_ns);
		return;
	}
	add(&lender->vtime, -to_virtual(service_ns, lender->weight));
	add(&s->returned_ns, service_ns);
}

/* Ends a loan of which nothing was used: the borrower runs already, or sleeps. */
INLINE void drop_loan(struct task *t)
{
	u64 credit = __sync_lock_test_and_set(&t->credit, 0);

	if (t->dirty == BORROWS)
		t->dirty = CLEAN;
	give_back(t, credit);
}

/* Finds the virtual time in the middle of a queue, which counts who runs (`runs`: 1 or 0), for the decision of the core `c`. */
INLINE bool find_middle(struct core *c, s32 cpu, u32 runs)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u32 length = scx_bpf_dsq_nr_queued(cpu) + runs;

	c->length = length;
	c->middle_at = length / 2 > runs ? length / 2 - runs : 0;
	c->seen = 0;
	if (!bpf_iter_scx_dsq_new(&it, cpu, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it))) {
			struct task *t = get_task(p);
			if (t)
				c->middle = t->vtime;
			if (c->seen++ >= c->middle_at)
				break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return c->seen;
}

/* How far a task is behind the middle that was found, as service in ns. */
INLINE u64 beyond_middle(struct core *c, struct task *t)
{
	s64 way = t->vtime - c->middle;
	return way > 0 ? to_service(way, t->weight) : 0;
}

/* Who waits here and was lent something moves forward, to the middle of the queue at most. */
INLINE void settle(s32 cpu, struct core *c, struct state *s)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (!c->owes)
		return;
	c->owes = 0;
	if (!find_middle(c, cpu, 0))
		return;
	if (!bpf_iter_scx_dsq_new(&it, cpu, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it))) {
			struct task *t = get_task(p);
			u64 credit, used;

			if (!t || !t->credit)
				continue;
			credit = __sync_lock_test_and_set(&t->credit, 0);
			used = beyond_middle(c, t);
			if (used > credit)
				used = credit;
			t->dirty = CLEAN;
			add(&s->borrowed_ns, used);
			give_back(t, credit - used);
			if (!used)
				continue;
			add(&t->vtime, -to_virtual(used, t->weight));
			scx_bpf_dsq_move_set_vtime(&it, t->vtime);
			scx_bpf_dsq_move_vtime(&it, p, cpu, 0);
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
}

/* Looks for the sibling that is farthest behind, in one queue. */
INLINE void look_for_sibling(struct core *c, u32 gang, s32 cpu)
{
	struct core *theirs = get_core(cpu);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (!theirs || !find_middle(c, cpu, theirs->since != 0))
		return;
	c->seen = theirs->since != 0;
	if (!bpf_iter_scx_dsq_new(&it, cpu, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it))) {
			struct task *t = get_task(p);
			if (t && t->gang == gang && t->dirty == CLEAN && c->seen > c->behind) {
				c->behind = c->seen;
				/* thousandths are rounded, 667 up: two of three are two thirds */
				c->tid = tid_of(p);
				c->sibling_at = cpu;
				c->amount = beyond_middle(c, t);
				c->picks = c->picks & ~FAR;
				if (c->seen * 1000 > (get_threshold() - 1) * c->length)
					c->picks |= FAR;
			}
			c->seen++;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
}

/* The same, in all queues but that of the core that decides. */
INLINE void farthest(struct core *c, struct gang *g, u32 gang, s32 here)
{
	struct state *s = get_state();
	struct bpf_iter_num it;
	int *i;

	c->behind = 0;
	c->tid = 0;
	c->picks &= ~FAR;
	bpf_iter_num_new(&it, 0, s ? s->cores : 0);
	while ((i = bpf_iter_num_next(&it))) {
		s32 cpu = *i;
		if (cpu == here || *on_core(g, cpu) <= 0)
			continue;
		look_for_sibling(c, gang, cpu);
	}
	bpf_iter_num_destroy(&it);
}

/* Whether `a`, which is the first at this core, lends its turn to a sibling. */
INLINE bool lends(struct task *a, u32 tid, s32 here, struct core *c, struct state *s)
{
	struct settings *settings = get_settings();
	struct gang *g = get_gang(a->gang);
	struct task *b;
	struct core *theirs;
	bool may;
	u64 amount;
	s64 way;

	if (!settings || !g)
		return 0;
	way = find_middle(c, here, 0) ? c->middle - a->vtime : 0;
	may = settings->policy == SBCO && a->dirty == CLEAN && !a->woke && way > 0;
	if (!may && ++c->picks % MEASURE_EACH)
		return 0;
	farthest(c, g, a->gang, here);
	add(&g->distances, 1);
	add(&g->distance, c->behind);
	if (!may || !(c->picks & FAR))
		return 0;
	amount = to_service(way, a->weight);
	if (amount > c->amount)
		amount = c->amount;
	b = get_tid(c->tid);
	theirs = get_core(c->sibling_at);
	if (!amount || !b || !theirs || __sync_val_compare_and_swap(&b->dirty, CLEAN, BORROWS) != CLEAN)
		return 0;
	a->dirty = LENT;
	add(&a->vtime, to_virtual(amount, a->weight));
	b->lender = tid;
	add(&b->credit, amount);
	theirs->owes = 1;
	add(&s->lent_ns, amount);
	add(&s->loans, 1);
	add(&g->lent, 1);
	return 1;
}
