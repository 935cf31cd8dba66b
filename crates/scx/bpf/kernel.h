/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
 *
 * What floe's scheduler uses of the kernel. Nothing here depends on a kernel's version: offsets of fields and the numbers of functions are
 * filled in by the loader, from the running kernel's own description of its types (BTF).
 */
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;
#define bool _Bool
#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* Only ever pointed to. */
struct task_struct;
struct cgroup;
struct cpumask;

/* A field at__STRUCT__FIELD[__FIELD]: its address is its offset, which the loader fills in. */
extern const char at__task_struct__pid[], at__task_struct__flags[], at__task_struct__nr_cpus_allowed[], at__task_struct__cpus_ptr[],
	at__task_struct__scx__weight[], at__task_struct__scx__slice[], at__task_struct__scx__flags[], at__cgroup__kn[], at__cgroup__level[],
	at__kernfs_node__id[], at__scx_init_task_args__cgroup[], at__scx_cgroup_init_args__weight[],
	at__scx_cgroup_init_args__bw_period_us[], at__scx_cgroup_init_args__bw_quota_us[];
#define FIELD(type, pointer, field) (*(type *)((char *)(pointer) + (u64)at__##field))

/* Helpers, by their numbers, which never change. */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;

/* Functions of the kernel, by their names. */
struct bpf_iter_num { u64 opaque[1]; };
struct bpf_iter_scx_dsq { u64 opaque[6]; };
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end);
extern int *bpf_iter_num_next(struct bpf_iter_num *it);
extern void bpf_iter_num_destroy(struct bpf_iter_num *it);
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq, u64 flags);
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it);
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it);
extern void bpf_rcu_read_lock(void);
extern void bpf_rcu_read_unlock(void);
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask);
extern struct cgroup *bpf_cgroup_ancestor(struct cgroup *group, int level);
extern void bpf_cgroup_release(struct cgroup *group);
extern s32 scx_bpf_create_dsq(u64 dsq, s32 node);
extern s32 scx_bpf_dsq_nr_queued(u64 dsq);
extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq, u64 slice, u64 flags);
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq, u64 slice, u64 vtime, u64 flags);
extern bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq, u64 flags);
extern bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq, u64 flags);
extern bool scx_bpf_dsq_move_to_local(u64 dsq);
extern void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice);
extern void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime);
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags);
extern u32 scx_bpf_nr_cpu_ids(void);
extern s32 scx_bpf_task_cpu(const struct task_struct *p);
extern const struct cpumask *scx_bpf_get_online_cpumask(void);
extern void scx_bpf_put_cpumask(const struct cpumask *mask);

#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_KICK_IDLE 1
#define SCX_KICK_PREEMPT 2
#define SCX_TASK_QUEUED 1
#define PF_KTHREAD 0x00200000
#define BPF_ANY 0
#define BPF_NOEXIST 1
