/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
 *
 * What the scheduler keeps of cores, tasks, machines and control groups.
 */
#pragma once
#include "kernel.h"

#define CORES 256
#define GANGS 256
#define NOWHERE (-1)
/* The queue of those whose control group has used up its quota. Those of cores have the numbers of the cores. */
#define PARKED 0x10000ULL
#define SLICE_NS 3000000ULL
/* Who wakes up goes before one that runs and is ahead by more. */
#define WAKEUP_NS 1000000ULL
/* How often a core that is busy looks for a queue that is longer than its own. */
#define BALANCE_NS 64000000ULL
/* How often a vCPU looks for a core that no sibling takes at the same moment. */
#define TRIES 3
/* Most control groups above one another that may have quotas. */
#define DEPTH 8
/* Distances are also measured where nothing is to be lent: at each so many decisions. */
#define MEASURE_EACH 8

/* A bit of `picks`: the sibling that was found is as far as the threshold. */
#define FAR 0x80000000

enum { CLEAN = 0, LENT = 1, BORROWS = 2 };
enum { BALANCE = 1, SBCO = 2 };

/* What the loader sets. */
struct settings {
	u32 policy;
	/* Grows when it has changed who is a vCPU. */
	u32 epoch;
	/* From which part of the queue on a sibling is far, in thousandths. */
	u32 threshold;
	u32 unused;
};

/* What there is once. */
struct state {
	u32 cores;
	/* Whether any control group has ever had a quota. */
	u32 quotas;
	u64 lent_ns, borrowed_ns, returned_ns, written_off_ns, loans;
	u64 parked, moved;
	s64 waiting;
};

struct core {
	/* Virtual time: that of the last task that was given it. */
	u64 now;
	/* Of the task that runs: since when, with which virtual time and weight; all 0 if none does. */
	u64 since, vtime;
	u32 weight;
	/* Whether a task that waits here has been lent something. */
	u32 owes;
	u64 balanced;
	u32 online;
	u32 picks;
	/* What a decision of this core has found so far. It is here since the kernel's verifier follows each value on a stack. */
	u64 middle, amount;
	u32 middle_at, seen, behind, length, tid;
	s32 sibling_at;
};

/* A machine. */
struct gang {
	/* How many of its vCPUs run or wait at each core. */
	s32 on[CORES];
	u64 runs, stacked, distances, distance, lent, ran_ns, waited_ns, moved;
};

struct task {
	/* Virtual time, in that of the core `at`. */
	u64 vtime;
	/* What it was lent and has not got yet, as service in ns, and by whom. */
	u64 credit;
	u64 group;
	u64 since, waits_since;
	u32 lender;
	u32 weight;
	u32 epoch;
	/* Number of its machine plus one, or 0. */
	u32 gang;
	/* At which core it counts for its machine, or NOWHERE. */
	s32 claim;
	s32 at;
	u32 dirty;
	u32 woke;
	/* What the search for a place has found so far. */
	s32 best;
	u32 rank;
};

/* A control group. */
struct group {
	u64 parent;
	u64 period_ns, quota_ns;
	u64 began;
	s64 left_ns;
	u32 weight;
	u32 unused;
};

/* Whose thread is a vCPU: the number of its machine plus one. */
struct vcpu {
	u32 gang, unused;
};

/*
 * Maps. Only their addresses are used, and their sizes, by the loader: those of an entry. All have the same alignment: clang 16 can't fill
 * gaps between them.
 */
#define MAP SEC(".maps") __attribute__((aligned(8)))
struct settings settings MAP = {};
struct state state MAP = {};
struct core cores MAP = {};
struct gang gangs MAP = {};
struct vcpu vcpus MAP = {};
struct task tasks MAP = {};
struct group groups MAP = {};

INLINE struct settings *get_settings(void) { u32 zero = 0; return bpf_map_lookup_elem(&settings, &zero); }
INLINE u32 get_threshold(void)
{
	struct settings *s = get_settings();
	return s && s->threshold ? s->threshold : 1000;
}
INLINE struct state *get_state(void) { u32 zero = 0; return bpf_map_lookup_elem(&state, &zero); }
INLINE struct core *get_core(s32 cpu) { u32 key = cpu; return bpf_map_lookup_elem(&cores, &key); }
INLINE struct gang *get_gang(u32 gang) { u32 key = gang - 1; return gang ? bpf_map_lookup_elem(&gangs, &key) : NULL; }
INLINE struct task *get_tid(u32 tid) { return bpf_map_lookup_elem(&tasks, &tid); }
INLINE u32 tid_of(struct task_struct *p) { return FIELD(u32, p, task_struct__pid); }
INLINE struct task *get_task(struct task_struct *p) { return get_tid(tid_of(p)); }
INLINE bool allowed(struct task_struct *p, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, FIELD(const struct cpumask *, p, task_struct__cpus_ptr));
}

/* How many vCPUs of a machine are at a core. The verifier has to see that the place is within the table, whatever clang makes of a check. */
INLINE s32 *on_core(struct gang *g, s32 cpu)
{
	u64 at = (u32)cpu;

	asm volatile("%0 &= 255" : "+r"(at));
	return &g->on[at];
}
INLINE bool is_core(s32 cpu) { return (u32)cpu < CORES; }

INLINE void add(u64 *to, u64 amount) { __sync_fetch_and_add(to, amount); }
/* Service in ns as virtual time of a task with this weight, and the other way. */
INLINE u64 to_virtual(u64 ns, u32 weight) { return ns * 100 / (weight ? weight : 100); }
INLINE u64 to_service(u64 ns, u32 weight) { return ns * (weight ? weight : 100) / 100; }
