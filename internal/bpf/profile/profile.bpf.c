//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counts, for each sample of a CPU, the kernel stack that it interrupted, or the
 * name of the command whose user code it interrupted.
 *
 * The kernel's own table of stacks (bpf_get_stackid) loses those whose hashes
 * share a bucket, a share of all that grows with their number. Here a stack is
 * found by 64 bits of hash, in a table that knows no such collisions. */
#include "../include/kernel.h"

enum {
	MAX_FRAMES = 127, /* kernel.perf_event_max_stack */
	MAX_STACKS = 8192,
};

enum kind {
	KERNEL,
	SWAPPER, /* the idle task, or an interrupt in it */
	USER,
};

enum count {
	SAMPLES,  /* all that were taken */
	NO_STACK, /* … of which the kernel gave no stack */
	FULL,     /* … of which the stack had no room */
	NR_COUNTS,
};

struct key {
	__u64 hash;
	__u64 kind;
};

struct stack {
	__u64 count;
	__u64 frames; /* how many there are */
	union {
		__u64 ip[MAX_FRAMES]; /* innermost first */
		char command[16];
	};
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_STACKS);
	__type(key, struct key);
	__type(value, struct stack);
} stacks SEC(".maps");

/* A stack is too large for the program's own. A sample does not interrupt
 * another on its CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(enum count what)
{
	__u32 key = what;
	__u64 *n = bpf_map_lookup_elem(&counts, &key);

	if (n)
		(*n)++;
}

/* FNV-1a over words, with the upper half folded in: addresses differ in their
 * lower halves. */
static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x100000001b3ULL;
	return hash ^ (hash >> 29);
}

static __always_inline void add(const struct key *key, struct stack *s)
{
	struct stack *known = bpf_map_lookup_elem(&stacks, key);

	if (!known) {
		s->count = 1;
		if (!bpf_map_update_elem(&stacks, key, s, BPF_NOEXIST))
			return;
		/* Another CPU may have been faster. */
		known = bpf_map_lookup_elem(&stacks, key);
	}
	if (known)
		__sync_fetch_and_add(&known->count, 1);
	else
		count(FULL);
}

static __always_inline void add_user(struct stack *s)
{
	struct key key = { .hash = 0xcbf29ce484222325ULL, .kind = USER };

	s->frames = 0;
	if (bpf_get_current_comm(s->command, sizeof(s->command))) {
		count(NO_STACK);
		return;
	}
	key.hash = mix(mix(key.hash, s->ip[0]), s->ip[1]);
	add(&key, s);
}

static __always_inline void add_kernel(struct stack *s, bool swapper)
{
	struct key key = { .hash = 0xcbf29ce484222325ULL, .kind = swapper ? SWAPPER : KERNEL };

	for (__u32 i = 0; i < MAX_FRAMES; i++) {
		if (i >= s->frames)
			break;
		key.hash = mix(key.hash, s->ip[i]);
	}
	add(&key, s);
}

SEC("perf_event")
int sample(void *ctx)
{
	__u32 zero = 0;
	struct stack *s = bpf_map_lookup_elem(&scratch, &zero);
	bool swapper = (__u32)bpf_get_current_pid_tgid() == 0;
	long bytes;

	if (!s)
		return 0;
	count(SAMPLES);
	bytes = bpf_get_stack(ctx, s->ip, sizeof(s->ip), 0);
	s->frames = bytes > 0 ? bytes / sizeof(s->ip[0]) : 0;
	if (s->frames)
		add_kernel(s, swapper);
	else if (bytes == 0 && !swapper)
		add_user(s); /* no kernel stack: user code was interrupted */
	else
		count(NO_STACK);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
