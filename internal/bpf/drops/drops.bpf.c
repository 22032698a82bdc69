//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Counts the packets that the kernel drops.

#include "packet.h"
#include "tables.h"
#include "verdict.h"

char LICENSE[] SEC("license") = "GPL";

/* Makes bpf2go see the type, which is only written to the ring buffer. */
const struct event *const event_type __attribute__((unused));

/* Switches, set before loading. */
const volatile bool has_reason;    /* the tracepoint's third argument is the reason (5.17) */
const volatile bool has_verdicts;  /* the programs of verdict.h are attached */
const volatile bool has_filter;    /* flow_matches has to be asked */
const volatile bool has_events;
const volatile bool has_stacks;
const volatile __u32 headers_each; /* headers kept in a window of a kind of drop, and of all; 0: none */
const volatile __u32 headers_all;
const volatile bool hide_harmless; /* make nothing of frees that are no drops but count them */
const volatile __u32 consumed;     /* reasons up to this one are no drops */
const volatile __u32 only_netns;   /* 0: all */
const volatile __u32 only_ifindex; /* 0: all */
const volatile __u32 flow_sample;  /* record one drop in this number; 0: none */
const volatile __u32 stack_sample; /* the same */
const volatile __u32 set_shift = 64 - SET_BITS; /* of a 64-bit hash; more in tests, for fewer sets */

struct range {
	__u64 from, to;
};

enum {
	RANGES = 32,
	CLOSED = 4,
	/* With few drops a sample would not show whose packets they are. */
	FIRST_FLOWS = 64,
};

const volatile __u32 closed[CLOSED]; /* nor are these reasons: a socket was closed */

/* The functions that end packets by kfree_skb without dropping them, if the reason does
 * not show it. They are counted, but make no flow, stack or event. */
const volatile __u32 unspecified; /* that reason */
const volatile struct range harmless[RANGES];

/* spill counts what has no place in its set. */
static __always_inline __u64 spill(const struct site *site)
{
	volatile __u64 *packets = bpf_map_lookup_elem(&spilled, site);
	__u64 nth, one = 1;
	struct cpu *cpu;

	if (packets) {
		nth = *packets; /* about: what an addition found is told since Linux 5.12 */
		__sync_fetch_and_add(packets, 1);
		return nth;
	}
	if (bpf_map_update_elem(&spilled, site, &one, BPF_ANY) && (cpu = this_cpu()))
		cpu->lost++;
	return 0;
}

static __always_inline bool same(const struct site *a, const struct site *b)
{
	const __u64 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

/* count returns how many there were before on this CPU. */
static __always_inline __u64 count(const struct site *site)
{
	const __u64 *word = (const void *)site;
	__u64 mixed = (word[0] ^ word[1] * 0xff51afd7ed558ccdull ^ word[2] * 0xc4ceb9fe1a85ec53ull) * 0x9e3779b97f4a7c15ull;
	__u32 index = mixed >> set_shift;
	struct set *set = bpf_map_lookup_elem(&sites, &index);

	if (!set)
		return 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		struct slot *slot = &set->way[i];

		if (same(&slot->site, site) && slot->packets)
			return slot->packets++;
		if (!slot->packets) {
			slot->site = *site;
			slot->packets = 1;
			return 0;
		}
	}
	return spill(site);
}

/* chosen is true for the first drops of a kind on this CPU and then for one in one_in, not
 * at equal distances: drops may follow a regular pattern. */
static __always_inline bool chosen(__u64 nth, __u64 first, __u32 one_in)
{
	__u64 x = nth * 0x9e3779b97f4a7c15ull;

	if (!one_in)
		return false;
	x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
	return nth < first || !((x >> 32) * one_in >> 32);
}

/* is_harmless compares without branches, each of which would double what the verifier
 * has to go through. */
static __always_inline bool is_harmless(const struct site *site)
{
	__u64 hit = 0, at, no;

	if (has_reason && site->reason != unspecified) {
#pragma unroll
		for (int i = 0; i < CLOSED; i++) {
			no = site->reason ^ closed[i];
			hit |= no - 1; /* 64 bits: the highest is set for 0 only */
		}
		return hit >> 63 || site->reason <= consumed;
	}
#pragma unroll
	for (int i = 0; i < RANGES; i++) {
		at = site->location - harmless[i].from;
		hit |= ~at & (at - (harmless[i].to - harmless[i].from));
	}
	return hit >> 63;
}

static __always_inline void note_flow(const struct packet *p, const struct site *site, const struct flow *f)
{
	struct drop_flow key = {.site = *site, .sport = f->sport, .dport = f->dport, .ifindex = p->ifindex};
	struct cpu *cpu;
	__u64 *packets, one = 1;

	__builtin_memcpy(key.saddr, f->saddr, sizeof(key.saddr));
	__builtin_memcpy(key.daddr, f->daddr, sizeof(key.daddr));
	packets = bpf_map_lookup_elem(&flows, &key);
	if (packets) {
		__sync_fetch_and_add(packets, 1);
		return;
	}
	cpu = this_cpu();
	if (!cpu)
		return;
	if (bpf_map_update_elem(&flows, &key, &one, BPF_ANY))
		cpu->lost_flows++;
	else
		cpu->new_flows++;
}

static __always_inline void note_stack(void *ctx, const struct site *site)
{
	struct stack_key key = {.site = *site};
	long id = bpf_get_stackid(ctx, &stacks, BPF_F_FAST_STACK_CMP);
	__u64 *packets, one = 1;
	struct cpu *cpu;

	key.id = id;
	if (id >= 0) {
		packets = bpf_map_lookup_elem(&stack_counts, &key);
		if (packets) {
			__sync_fetch_and_add(packets, 1);
			return;
		}
		if (!bpf_map_update_elem(&stack_counts, &key, &one, BPF_ANY))
			return;
	}
	cpu = this_cpu();
	if (cpu)
		cpu->lost_stacks++;
}

static __always_inline void tell(const struct packet *p, const struct site *site, const struct flow *f)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	struct cpu *cpu;

	if (!e) {
		cpu = this_cpu();
		if (cpu)
			cpu->lost_events++;
		return;
	}
	e->time_ns = bpf_ktime_get_ns();
	e->site = *site;
	e->flow = *f;
	e->ifindex = p->ifindex;
	e->length = p->length;
	bpf_ringbuf_submit(e, 0);
}

/* has_room counts what is kept in a window. CPUs that do so at the same time may keep one more
 * each; a window that is full is only read, as one cache line for all CPUs would be slow. */
static __always_inline bool has_room(__u32 index, __u64 number, __u32 most)
{
	struct window *w = bpf_map_lookup_elem(&windows, &index);

	if (!w)
		return false;
	if (w->number != number) {
		w->number = number;
		w->kept = 0;
	}
	if (w->kept >= most)
		return false;
	__sync_fetch_and_add(&w->kept, 1);
	return true;
}

/* keep_header hands on the beginning of a packet, of few packets of each kind in a second: of a flood
 * of one kind there are no more than of others. */
static __always_inline void keep_header(const struct packet *p, const struct site *site)
{
	__u64 now = bpf_ktime_get_ns(), number = now >> HEADER_WINDOW;
	__u64 kind = (site->location ^ site->reason * 0xff51afd7ed558ccdull) * 0x9e3779b97f4a7c15ull;
	struct header *h;
	struct cpu *cpu;

	if (!p->network_header || p->tail <= p->network_header)
		return;
	if (!has_room(kind >> (64 - HEADER_KIND_BITS), number, headers_each))
		return;
	if (!has_room(1 << HEADER_KIND_BITS, number, headers_all))
		return;
	h = bpf_ringbuf_reserve(&headers, sizeof(*h), 0);
	if (!h) {
		cpu = this_cpu();
		if (cpu)
			cpu->lost_headers++;
		return;
	}
	h->time_ns = now;
	h->site = *site;
	h->ifindex = p->ifindex;
	h->length = p->tail - p->network_header;
	/* What is behind the end can be read, and is not used. */
	if (h->length > HEADER_BYTES)
		h->length = HEADER_BYTES;
	if (bpf_probe_read_kernel(h->bytes, HEADER_BYTES, p->head + p->network_header))
		h->length = 0;
	bpf_ringbuf_submit(h, BPF_RB_NO_WAKEUP);
}

/* cause_of is what the programs of verdict.h left for this packet. */
static __always_inline __u32 cause_of(const struct packet *p)
{
	struct cpu *cpu = this_cpu();

	if (!cpu || cpu->condemned != p->skb)
		return CAUSE_NONE;
	cpu->condemned = 0;
	return recent(cpu->condemned_ns) ? cpu->cause : CAUSE_NONE;
}

static __always_inline void parse(const struct packet *p, struct flow *f)
{
	if (p->network_header)
		parse_flow(p->head, p->network_header, p->tail, p->protocol, f);
	else
		f->l3 = ntohs(p->protocol);
}

static __always_inline int drop(void *ctx, const struct packet *p, __u64 location, __u32 reason, bool ring)
{
	struct site site = {.location = location, .reason = reason, .netns = p->netns};
	struct flow flow = {};
	bool with_flow, with_stack;
	__u64 nth;

	if (only_netns && p->netns != only_netns)
		return 0;
	if (only_ifindex && p->ifindex != only_ifindex)
		return 0;
	if (has_verdicts)
		site.cause = cause_of(p);
	if (has_filter) {
		parse(p, &flow);
		if (!flow_matches(&flow))
			return 0;
	}
	site.protocol = protocol_of(p);
	nth = count(&site);
	with_flow = chosen(nth, FIRST_FLOWS, flow_sample);
	with_stack = has_stacks && chosen(nth, 1, stack_sample);
	if (!with_flow && !with_stack && !(ring && (has_events || headers_all)))
		return 0;
	if (hide_harmless && is_harmless(&site))
		return 0;
	if (ring && headers_all)
		keep_header(p, &site);
	if (!with_flow && !with_stack && !(ring && has_events))
		return 0;
	if (!has_filter)
		parse(p, &flow);
	if (with_flow)
		note_flow(p, &site, &flow);
	if (with_stack)
		note_stack(ctx, &site);
	if (ring && has_events)
		tell(p, &site, &flow);
	return 0;
}

/* Since Linux 5.5, with types. */
SEC("tp_btf/kfree_skb")
int drops_typed(__u64 *ctx)
{
	struct packet p = {};

	look((struct sk_buff *)ctx[0], &p);
	return drop(ctx, &p, ctx[1], has_reason ? (__u32)ctx[2] : 0, true);
}

/* The same without types, and without a ring buffer, which are as old as it. */
SEC("raw_tp/kfree_skb")
int drops_raw(__u64 *ctx)
{
	struct packet p = {};

	probe((struct sk_buff *)ctx[0], &p);
	return drop(ctx, &p, ctx[1], has_reason ? (__u32)ctx[2] : 0, false);
}
