/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
 *
 * Quotas and weights of control groups, which the kernel's own scheduler would see to.
 */
#pragma once
#include "model.h"

/* Whether a group has used up what it may in this period. What it has used beyond that counts in the next. */
INLINE bool used_up(struct group *g, u64 now)
{
	u64 began = g->began, periods;

	if (!g->quota_ns || !g->period_ns)
		return 0;
	if (now > began + g->period_ns) {
		periods = (now - began) / g->period_ns;
		if (__sync_val_compare_and_swap(&g->began, began, began + periods * g->period_ns) == began) {
			s64 left = g->left_ns + (s64)(periods * g->quota_ns);
			g->left_ns = left > (s64)g->quota_ns ? (s64)g->quota_ns : left;
		}
	}
	return g->left_ns <= 0;
}

INLINE bool throttled(struct task *t, u64 now)
{
	struct state *s = get_state();
	u64 id = t->group;
	bool is = 0;
	struct bpf_iter_num it;

	if (!s || !s->quotas)
		return 0;
	bpf_iter_num_new(&it, 0, DEPTH);
	while (bpf_iter_num_next(&it)) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);
		if (!g)
			break;
		if (used_up(g, now)) {
			is = 1;
			break;
		}
		id = g->parent;
	}
	bpf_iter_num_destroy(&it);
	return is;
}

INLINE void charge(struct task *t, u64 ns)
{
	struct state *s = get_state();
	u64 id = t->group;
	struct bpf_iter_num it;

	if (!s || !s->quotas)
		return;
	bpf_iter_num_new(&it, 0, DEPTH);
	while (bpf_iter_num_next(&it)) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);
		if (!g)
			break;
		if (g->quota_ns)
			__sync_fetch_and_add(&g->left_ns, -(s64)ns);
		id = g->parent;
	}
	bpf_iter_num_destroy(&it);
}

/* What has run since the last look counts: as virtual time, and against quotas. */
INLINE void account(struct task *t, u64 now)
{
	u64 ran = t->since && now > t->since ? now - t->since : 0;
	struct gang *g = get_gang(t->gang);

	t->since = now;
	add(&t->vtime, to_virtual(ran, t->weight));
	charge(t, ran);
	if (g)
		add(&g->ran_ns, ran);
}

INLINE void weigh(struct task_struct *p, struct task *t)
{
	u32 weight = FIELD(u32, p, task_struct__scx__weight);
	struct group *g = bpf_map_lookup_elem(&groups, &t->group);

	if (g && g->weight && g->weight != 100)
		weight = (u64)weight * g->weight / 100;
	t->weight = weight ? weight : 1;
}
