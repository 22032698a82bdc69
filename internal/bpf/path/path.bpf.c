//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Follows selected packets: reports each kernel function that gets one of their skbs.
 *
 * An skb that matches is noted by its address, its clones by theirs. When it is
 * freed, its address is noted as dead for a moment: what the kernel calls to take it
 * apart is no packet. */
#include "interface.h"

/* Set before loading. */
const volatile __u32 only_netns;   /* inode; 0: all */
const volatile __u32 only_ifindex; /* of that namespace; 0: all */
const volatile bool has_filter;
const volatile __u64 limit = 1;	   /* packets to follow */
const volatile bool multi;	   /* on kprobe.multi, not on single kprobes */
const volatile bool has_reason;	   /* kfree_skb has it since 5.17 */
volatile __u32 active;	/* all is attached: packets may begin */
volatile __u64 started; /* packets; may pass limit by one per CPU */
volatile __u64 lost;	/* events that found the ring full */

enum kind {
	STEP,
	CLONE,	  /* at is the function, other the skb that it was made from */
	DROPPED,  /* at is where, value the reason */
	CONSUMED, /* freed, and no drop; at is where */
	FREED,	  /* the same, reported by a function that takes it apart */
	RESULT,	  /* of the function at: value is what it returned */
};

struct event {
	__u64 time; /* ns */
	__u64 packet;
	__u64 skb;
	__u64 at;
	__u64 other;
	__u64 stack; /* pointer, at the function's first instruction */
	__s64 value;
	enum kind kind;
	__u32 cpu;
	__u32 netns;
	__u32 ifindex;
	__u32 mark;
	__u32 length; /* skb->len */
	__u8 hook;    /* of RESULT, where has_hook */
	__u8 pf;
	__u8 has_hook;
	__u8 pad[5];
	char device[16];
	struct flow flow;
};

struct tracked {
	__u64 packet;
	__u64 died; /* ns; 0 while it lives */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct tracked);
} tracked SEC(".maps");

/* Where a deciding function has what, by its address. */
struct decider {
	__u32 skb_arg;	 /* from 0 */
	__s32 state_arg; /* of its struct nf_hook_state; -1: none */
	__s32 skb_offset; /* in the structure that skb_arg is; -1: it is the skb */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, struct decider);
} deciders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 21);
} events SEC(".maps");


/* So that bpf2go sees the type. */
const struct event *event_type;

/* While it is taken apart, which is less. Until then its address starts nothing. */
#define DEATH_NS 100000

static __always_inline __u32 netns_of(struct sk_buff *skb, struct net_device *dev)
{
	struct net *net = 0;
	struct sock *sk;

	if (dev)
		net = READ(dev, nd_net.net);
	else if ((sk = READ(skb, sk)))
		net = READ(sk, __sk_common.skc_net.net);
	return net ? READ(net, ns.inum) : 0;
}

static __noinline int parse(struct sk_buff *skb, struct flow *f)
{
	parse_flow(READ(skb, head), READ(skb, network_header), READ(skb, tail), READ(skb, protocol), f);
	return 0;
}

static __noinline int describe(struct sk_buff *skb, struct event *e)
{
	struct net_device *dev = READ(skb, dev);

	e->netns = netns_of(skb, dev);
	if (dev) {
		const struct net_device___named *named = (const void *)dev;

		e->ifindex = READ(dev, ifindex);
		bpf_probe_read_kernel(e->device, sizeof(e->device), __builtin_preserve_access_index(&named->name));
	}
	e->mark = READ(skb, mark);
	e->length = READ(skb, len);
	return parse(skb, &e->flow);
}

static __always_inline struct event *new_event(enum kind kind, __u64 packet, struct sk_buff *skb, __u64 at)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	e->packet = packet;
	e->skb = (__u64)skb;
	e->at = at;
	e->kind = kind;
	e->cpu = bpf_get_smp_processor_id();
	describe(skb, e);
	return e;
}

/* restricted: not on the device, or not in the namespace, that is asked for. */
static __always_inline bool restricted(struct sk_buff *skb)
{
	struct net_device *dev = READ(skb, dev);

	if (only_ifindex && (!dev || (__u32)READ(dev, ifindex) != only_ifindex))
		return true;
	return netns_of(skb, dev) != only_netns;
}

static __noinline int matches(struct sk_buff *skb)
{
	struct flow flow = {};

	if (only_netns && restricted(skb))
		return 0;
	if (!has_filter)
		return 1;
	parse(skb, &flow);
	return flow_matches(&flow);
}

/* packet_of returns the packet that an skb belongs to, a new one if it matches; 0: none. */
static __noinline __u64 packet_of(struct sk_buff *skb)
{
	__u64 key = (__u64)skb, now;
	struct tracked *t = bpf_map_lookup_elem(&tracked, &key);
	struct tracked born = {};

	if (t && !t->died)
		return t->packet;
	if (!active || started >= limit || !skb)
		return 0;
	now = bpf_ktime_get_ns();
	if (t && now - t->died < DEATH_NS)
		return 0;
	if (!matches(skb))
		return 0;
	__sync_fetch_and_add(&started, 1);
	born.packet = now << 10 | (bpf_get_smp_processor_id() & 1023);
	bpf_map_update_elem(&tracked, &key, &born, BPF_ANY);
	return born.packet;
}

static __always_inline int step(struct pt_regs *ctx, struct sk_buff *skb)
{
	__u64 packet = packet_of(skb);
	struct event *e;

	if (!packet)
		return 0;
	e = new_event(STEP, packet, skb, multi ? bpf_get_func_ip(ctx) : AT(ctx));
	if (!e)
		return 0;
	e->stack = ctx->sp;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* One for each place that a function has its skb in. */
#define STEP_OF(n)                                                   \
	SEC("kprobe")                                                \
	int path_arg##n(struct pt_regs *ctx)                         \
	{                                                            \
		return step(ctx, (struct sk_buff *)ARG##n(ctx));     \
	}

STEP_OF(1)
STEP_OF(2)
STEP_OF(3)
STEP_OF(4)
STEP_OF(5)

/* Of __copy_skb_header(new, old), by which every copy of an skb is made. */
SEC("kprobe")
int path_clone(struct pt_regs *ctx)
{
	__u64 old = ARG2(ctx), new = ARG1(ctx);
	struct tracked *t = bpf_map_lookup_elem(&tracked, &old);
	struct tracked copy = {};
	struct event *e;

	if (!t || t->died)
		return 0;
	copy.packet = t->packet;
	bpf_map_update_elem(&tracked, &new, &copy, BPF_ANY);
	e = new_event(CLONE, copy.packet, (struct sk_buff *)old, multi ? bpf_get_func_ip(ctx) : AT(ctx));
	if (!e)
		return 0;
	e->skb = new;
	e->other = old;
	e->stack = ctx->sp;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static __always_inline int die(enum kind kind, struct sk_buff *skb, __u64 at, __s64 reason)
{
	__u64 key = (__u64)skb;
	struct tracked *t = bpf_map_lookup_elem(&tracked, &key);
	struct event *e;

	if (!t || t->died)
		return 0;
	t->died = bpf_ktime_get_ns();
	e = new_event(kind, t->packet, skb, at);
	if (!e)
		return 0;
	e->value = reason;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* Of the functions that take an skb apart. */
SEC("kprobe")
int path_freed(struct pt_regs *ctx)
{
	return die(FREED, (struct sk_buff *)ARG1(ctx), multi ? bpf_get_func_ip(ctx) : AT(ctx), 0);
}

SEC("tp_btf/kfree_skb")
int path_dropped(__u64 *ctx)
{
	return die(DROPPED, (struct sk_buff *)ctx[0], ctx[1], has_reason ? (__s64)ctx[2] : -1);
}

SEC("tp_btf/consume_skb")
int path_consumed(__u64 *ctx)
{
	return die(CONSUMED, (struct sk_buff *)ctx[0], 0, 0);
}

/* A function that frees an skb returns soon after. */
#define RETURN_NS 10000000

/* dead_or_alive is the packet of an skb that a function may have freed. */
static __always_inline __u64 dead_or_alive(__u64 skb)
{
	struct tracked *t = bpf_map_lookup_elem(&tracked, &skb);

	return t && (!t->died || bpf_ktime_get_ns() - t->died < RETURN_NS) ? t->packet : 0;
}

/* What a function returned that decides about packets. It is loaded once for each. */
SEC("fexit")
int path_result(void *ctx)
{
	__u64 at = bpf_get_func_ip(ctx), skb = 0, state = 0, returned = 0, packet;
	const struct decider *d = bpf_map_lookup_elem(&deciders, &at);
	struct event *e;

	if (!d || bpf_get_func_arg(ctx, d->skb_arg, &skb))
		return 0;
	if (d->skb_offset >= 0)
		bpf_probe_read_kernel(&skb, sizeof(skb), (void *)(skb + d->skb_offset));
	packet = dead_or_alive(skb);
	if (!packet)
		return 0;
	e = new_event(RESULT, packet, (struct sk_buff *)skb, at);
	if (!e)
		return 0;
	bpf_get_func_ret(ctx, &returned);
	e->value = (__s32)returned;
	if (d->state_arg >= 0 && !bpf_get_func_arg(ctx, d->state_arg, &state)) {
		e->hook = READ((struct nf_hook_state *)state, hook);
		e->pf = READ((struct nf_hook_state *)state, pf);
		e->has_hook = 1;
	}
	bpf_ringbuf_submit(e, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
