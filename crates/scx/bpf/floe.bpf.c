/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
 *
 * floe's scheduler: the policy of crates/sched/src/cpu/ for Linux's sched_ext (docs/cpu-scheduling.md says what it does and why).
 *
 * Each core has one queue, ordered by virtual time, in which all tasks of the host wait: those of machines and all others. Machines' vCPUs
 * are told by thread ids, and have places apart from their siblings. One that is far ahead of a sibling lends it virtual time.
 *
 * The maps are made by the loader: crates/scx/src/maps.rs says of which kind, and reads figures out of them.
 */
#include "groups.h"
#include "lending.h"
#include "places.h"

SEC("struct_ops/select_cpu")
s32 floe_select_cpu(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	s32 before = (s32)ctx[1];
	struct task *t = get_task(p);

	if (!t)
		return before;
	recognise(p, t);
	return settle_at(p, t, before);
}

SEC("struct_ops/enqueue")
int floe_enqueue(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	u64 flags = ctx[1], now = bpf_ktime_get_ns(), floor;
	struct task *t = get_task(p);
	s32 here = scx_bpf_task_cpu(p), cpu = here;
	struct state *s = get_state();
	struct core *c;

	if (!t || !s || (FIELD(u32, p, task_struct__nr_cpus_allowed) == 1 && FIELD(u32, p, task_struct__flags) & PF_KTHREAD)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE_NS, flags);
		scx_bpf_kick_cpu(here, SCX_KICK_IDLE);
		return 0;
	}
	recognise(p, t);
	t->waits_since = now;
	t->woke = flags & SCX_ENQ_WAKEUP ? 1 : 0;
	if (throttled(t, now)) {
		release(t);
		add(&s->parked, 1);
		scx_bpf_dsq_insert(p, PARKED, SLICE_NS, flags);
		return 0;
	}
	if (t->gang) {
		struct gang *g = get_gang(t->gang);
		/* it has no place yet, shares one, or may not run where it has one */
		if (g && (!is_core(t->claim) || *on_core(g, t->claim) > 1 || !allowed(p, t->claim)))
			settle_at(p, t, here);
		if (t->claim >= 0)
			cpu = t->claim;
	} else if (!allowed(p, cpu)) {
		place(p, t, here);
		cpu = t->best;
	}
	moves_to(t, cpu);
	c = get_core(cpu);
	if (!c) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE_NS, flags);
		return 0;
	}
	floor = c->now - SLICE_NS;
	if ((s64)(t->vtime - floor) < 0)
		t->vtime = floor;
	scx_bpf_dsq_insert_vtime(p, cpu, SLICE_NS, t->vtime, flags);
	if (c->since && flags & SCX_ENQ_WAKEUP) {
		u64 theirs = c->vtime + to_virtual(now - c->since, c->weight);
		if ((s64)(theirs - t->vtime) > (s64)WAKEUP_NS)
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	} else if (cpu != here || !c->since) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	return 0;
}

/* Puts the first of a queue back, which has lent its turn, and takes the one after it. */
INLINE void pass_over_first(s32 cpu, u32 tid)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (!bpf_iter_scx_dsq_new(&it, cpu, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it))) {
			struct task *t = get_task(p);
			if (tid_of(p) == tid && t) {
				scx_bpf_dsq_move_set_vtime(&it, t->vtime);
				scx_bpf_dsq_move_vtime(&it, p, cpu, 0);
				continue;
			}
			if (scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0))
				break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
}

/* The first in a queue. Those before it whose groups have used up their quotas leave. */
INLINE u32 first_of(s32 cpu, struct state *s, u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u32 tid = 0;

	if (!bpf_iter_scx_dsq_new(&it, cpu, 0)) {
		while ((p = bpf_iter_scx_dsq_next(&it))) {
			struct task *t = get_task(p);
			if (t && throttled(t, now)) {
				release(t);
				add(&s->parked, 1);
				scx_bpf_dsq_move(&it, p, PARKED, 0);
				continue;
			}
			tid = tid_of(p);
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return tid;
}

SEC("struct_ops/dispatch")
int floe_dispatch(u64 *ctx)
{
	s32 cpu = (s32)ctx[0];
	struct task_struct *prev = (void *)ctx[1];
	u64 now = bpf_ktime_get_ns();
	struct core *c = get_core(cpu);
	struct state *s = get_state();
	struct task *before = NULL, *first;
	u32 tid;

	if (!c || !s)
		return 0;
	settle(cpu, c, s);
	if (prev && FIELD(u32, prev, task_struct__scx__flags) & SCX_TASK_QUEUED) {
		before = get_task(prev);
		if (before) {
			account(before, now);
			/* whose group has used up its quota leaves */
			if (throttled(before, now))
				before = NULL;
		}
	}
	tid = first_of(cpu, s, now);
	first = get_tid(tid);
	if (!first) {
		if (tid ? scx_bpf_dsq_move_to_local(cpu) : !before && steal(cpu, 1, s))
			return 0;
		goto go_on;
	}
	if (before && prev && (s64)(before->vtime - first->vtime) < 0) {
		if (!before->gang || !lends(before, tid_of(prev), cpu, c, s))
			goto go_on;
	} else if (first->gang && (before || scx_bpf_dsq_nr_queued(cpu) > 1)) {
		/* without a successor nobody lends */
		if (lends(first, tid, cpu, c, s)) {
			if (before && scx_bpf_dsq_nr_queued(cpu) < 2)
				goto go_on;
			pass_over_first(cpu, tid);
			return 0;
		}
	}
	if (now - c->balanced > BALANCE_NS) {
		c->balanced = now;
		if (steal(cpu, scx_bpf_dsq_nr_queued(cpu) + 2, s))
			return 0;
	}
	if (scx_bpf_dsq_move_to_local(cpu))
		return 0;
go_on:
	if (before && prev) {
		FIELD(u64, prev, task_struct__scx__slice) = SLICE_NS;
		c->vtime = before->vtime;
		c->since = now;
	}
	return 0;
}

SEC("struct_ops/running")
int floe_running(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	u64 now = bpf_ktime_get_ns();
	s32 cpu = scx_bpf_task_cpu(p);
	struct task *t = get_task(p);
	struct core *c = get_core(cpu);
	struct gang *g;

	if (!t || !c)
		return 0;
	moves_to(t, cpu);
	if (t->credit)
		drop_loan(t);
	t->since = now;
	if ((s64)(t->vtime - c->now) > 0)
		c->now = t->vtime;
	c->vtime = t->vtime;
	c->weight = t->weight;
	c->since = now;
	g = get_gang(t->gang);
	if (g && is_core(cpu)) {
		if (t->claim != cpu) {
			claim(t, cpu, 0);
			add(&g->moved, 1);
		}
		add(&g->runs, 1);
		if (t->waits_since && now > t->waits_since)
			add(&g->waited_ns, now - t->waits_since);
		if (*on_core(g, cpu) > 1)
			add(&g->stacked, 1);
	}
	t->waits_since = 0;
	return 0;
}

SEC("struct_ops/stopping")
int floe_stopping(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct task *t = get_task(p);
	struct core *c = get_core(scx_bpf_task_cpu(p));

	if (c)
		c->since = 0;
	if (!t)
		return 0;
	account(t, bpf_ktime_get_ns());
	t->since = 0;
	t->woke = 0;
	if (t->dirty == LENT)
		t->dirty = CLEAN;
	return 0;
}

SEC("struct_ops/tick")
int floe_tick(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct task *t = get_task(p);
	u64 now = bpf_ktime_get_ns();

	if (!t)
		return 0;
	account(t, now);
	if (throttled(t, now))
		FIELD(u64, p, task_struct__scx__slice) = 0;
	return 0;
}

SEC("struct_ops/quiescent")
int floe_quiescent(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct task *t = get_task(p);

	if (!t)
		return 0;
	release(t);
	if (t->credit || t->dirty == BORROWS)
		drop_loan(t);
	return 0;
}

SEC("struct_ops/set_weight")
int floe_set_weight(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct task *t = get_task(p);

	if (t) {
		if (t->credit || t->dirty == BORROWS)
			drop_loan(t);
		weigh(p, t);
	}
	return 0;
}

SEC("struct_ops/enable")
int floe_enable(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct task *t = get_task(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct core *c = get_core(cpu);

	if (!t || !c)
		return 0;
	t->at = cpu;
	t->vtime = c->now;
	weigh(p, t);
	return 0;
}

INLINE u64 id_of(struct cgroup *group)
{
	void *node = FIELD(void *, group, cgroup__kn);
	return node ? FIELD(u64, node, kernfs_node__id) : 0;
}

SEC("struct_ops.s/init_task")
s32 floe_init_task(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	void *args = (void *)ctx[1];
	struct cgroup *group = FIELD(struct cgroup *, args, scx_init_task_args__cgroup);
	struct task t = { .claim = NOWHERE, .weight = 100 };
	u32 tid = tid_of(p);

	t.group = group ? id_of(group) : 0;
	return bpf_map_update_elem(&tasks, &tid, &t, BPF_ANY);
}

SEC("struct_ops/exit_task")
int floe_exit_task(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct task *t = get_task(p);
	u32 tid = tid_of(p);

	if (!t)
		return 0;
	release(t);
	if (t->credit || t->dirty == BORROWS)
		drop_loan(t);
	bpf_map_delete_elem(&tasks, &tid);
	return 0;
}

INLINE void bound(struct group *g, u64 period_us, u64 quota_us)
{
	struct state *s = get_state();

	g->period_ns = period_us * 1000;
	/* no quota is all bits set */
	g->quota_ns = quota_us > (1ULL << 40) ? 0 : quota_us * 1000;
	g->began = bpf_ktime_get_ns();
	g->left_ns = g->quota_ns;
	if (g->quota_ns && s)
		s->quotas = 1;
}

SEC("struct_ops.s/cgroup_init")
s32 floe_cgroup_init(u64 *ctx)
{
	struct cgroup *group = (void *)ctx[0];
	void *args = (void *)ctx[1];
	int level = FIELD(s32, group, cgroup__level);
	struct group g = {};
	struct cgroup *parent;
	u64 id = id_of(group);

	g.weight = FIELD(u32, args, scx_cgroup_init_args__weight);
	bound(&g, FIELD(u64, args, scx_cgroup_init_args__bw_period_us), FIELD(u64, args, scx_cgroup_init_args__bw_quota_us));
	if (level > 0) {
		parent = bpf_cgroup_ancestor(group, level - 1);
		if (parent) {
			g.parent = id_of(parent);
			bpf_cgroup_release(parent);
		}
	}
	return bpf_map_update_elem(&groups, &id, &g, BPF_ANY);
}

SEC("struct_ops.s/cgroup_exit")
int floe_cgroup_exit(u64 *ctx)
{
	struct cgroup *group = (void *)ctx[0];
	u64 id = id_of(group);

	bpf_map_delete_elem(&groups, &id);
	return 0;
}

SEC("struct_ops/cgroup_move")
int floe_cgroup_move(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct cgroup *to = (void *)ctx[2];
	struct task *t = get_task(p);

	if (t && to) {
		t->group = id_of(to);
		weigh(p, t);
	}
	return 0;
}

SEC("struct_ops/cgroup_set_weight")
int floe_cgroup_set_weight(u64 *ctx)
{
	struct cgroup *group = (void *)ctx[0];
	u64 id = id_of(group);
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g)
		g->weight = (u32)ctx[1];
	return 0;
}

SEC("struct_ops/cgroup_set_bandwidth")
int floe_cgroup_set_bandwidth(u64 *ctx)
{
	struct cgroup *group = (void *)ctx[0];
	u64 id = id_of(group);
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g)
		bound(g, ctx[1], ctx[2]);
	return 0;
}

SEC("struct_ops.s/init")
s32 floe_init(u64 *ctx)
{
	const struct cpumask *online;
	struct state *s = get_state();
	u32 count = scx_bpf_nr_cpu_ids();
	struct bpf_iter_num it;
	s32 error = 0;
	int *i;

	if (!s || count > CORES)
		return -22;
	s->cores = count;
	error = scx_bpf_create_dsq(PARKED, -1);
	if (error)
		return error;
	bpf_iter_num_new(&it, 0, count);
	while ((i = bpf_iter_num_next(&it))) {
		error = scx_bpf_create_dsq(*i, -1);
		if (error)
			break;
	}
	bpf_iter_num_destroy(&it);
	if (error)
		return error;
	online = scx_bpf_get_online_cpumask();
	bpf_iter_num_new(&it, 0, count);
	while ((i = bpf_iter_num_next(&it))) {
		struct core *c = get_core(*i);
		if (c)
			c->online = bpf_cpumask_test_cpu(*i, online);
	}
	bpf_iter_num_destroy(&it);
	scx_bpf_put_cpumask(online);
	return 0;
}

/* Run by the loader: whose group may go on leaves the queue of those that wait for that. Returns whether there are quotas at all. */
SEC("syscall")
int floe_unpark(void *ctx)
{
	u64 now = bpf_ktime_get_ns();
	struct state *s = get_state();
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (!s || !s->quotas)
		return 0;
	bpf_rcu_read_lock();
	if (bpf_iter_scx_dsq_new(&it, PARKED, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		bpf_rcu_read_unlock();
		return 1;
	}
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct task *t = get_task(p);
		s32 cpu;
		struct core *c;

		if (!t || throttled(t, now))
			continue;
		cpu = settle_at(p, t, scx_bpf_task_cpu(p));
		c = get_core(cpu);
		if (!c)
			continue;
		moves_to(t, cpu);
		if ((s64)(t->vtime - c->now) < 0)
			t->vtime = c->now;
		scx_bpf_dsq_move_set_vtime(&it, t->vtime);
		scx_bpf_dsq_move_vtime(&it, p, cpu, 0);
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return 1;
}
