//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The eBPF engine's program at XDP with parts left out, by which one sees what each of them costs. */
#include "../../internal/bpf/plane/frame.h"

/* Parts, in the order in which a frame meets them. It is redirected in any case. */
enum part {
	NONE,
	HEADERS,  /* are read */
	DECISION, /* where the flow goes, and as what */
	REWRITE,  /* of addresses, ports and checksums */
	COUNTERS,
};

/* last_part is the last that is not left out. */
const volatile enum part last_part;

/* What a decision is made of. */
enum origin {
	MEMORY, /* as in the engine, and what is not known yet is decided by all of it */
	MAPPINGS,
	ROUTES, /* and mappings */
};

const volatile enum origin decided_by;

/* Where frames go that no decision was made for. */
const volatile __u32 out_ifindex;
const volatile __u32 mac_words[3];

/* DONE has everything of a variable be there: the compiler leaves nothing of it for later parts to do. */
#define DONE(var) asm volatile("" : : "r"(&var) : "memory")

static __always_inline void leave_by_constants(struct decision *d)
{
	__u32 words[3] = {mac_words[0], mac_words[1], mac_words[2]};

	__builtin_memcpy(d->dmac, words, sizeof(d->dmac));
	__builtin_memcpy(d->smac, (void *)words + sizeof(d->dmac), sizeof(d->smac));
	d->out = out_ifindex;
}

static __always_inline int redirect(struct xdp_md *ctx, const struct decision *d)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + sizeof(struct ethhdr) > end)
		return XDP_PASS;
	set_macs(data, d);
	return bpf_redirect(d->out, 0);
}

static __always_inline int leave_unchanged(struct xdp_md *ctx)
{
	struct decision d;

	leave_by_constants(&d);
	return redirect(ctx, &d);
}

/* ask_mappings is decide without routes. */
static __always_inline bool ask_mappings(struct decision *d, const struct packet *p)
{
	__u32 index = p->flow.in;
	const struct interface *in = bpf_map_lookup_elem(&interfaces, &index), *out;
	const struct mapping *m;
	struct sought is;

	index = out_ifindex;
	out = bpf_map_lookup_elem(&interfaces, &index);
	if (!in || !out)
		return false;
	d->src = p->flow.src;
	d->dst = p->flow.dst;
	d->sport = p->flow.sport;
	d->dport = p->flow.dport;
	d->rule_in = d->rule_out = 0;
	m = find_destination(p, in->roles, &is);
	if (!m || !map(m, &d->dst))
		return false;
	d->rule_in = m->rule;
	if (choose_source(d, p, in, out->roles, true) != FORWARD)
		return false;
	leave_by_constants(d);
	sum_up(d, p);
	return true;
}

static __always_inline bool find_decision(struct xdp_md *ctx, struct decision *d, const struct packet *p, __u32 now)
{
	if (decided_by == MAPPINGS)
		return ask_mappings(d, p);
	if (decided_by == MEMORY && recall(p, now, d))
		return true;
	if (decide(ctx, d, p, &p->flow.src) != FORWARD || d->unresolved)
		return false;
	if (decided_by == MEMORY)
		keep(d, p, now, epoch);
	return true;
}

SEC("xdp")
int some_parts(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p = {.flow.in = ctx->ingress_ifindex};
	__u32 now = bpf_jiffies64();
	struct decision d;

	if (last_part == NONE)
		return leave_unchanged(ctx);
	if (read_plain(data, end, sizeof(struct ethhdr), 0, &p) != PLAIN || p.ttl <= 1)
		return XDP_PASS;
	if (data + p.l3 + p.length > end || !is_ours(ctx, data))
		return XDP_PASS;
	DONE(p);
	if (last_part == HEADERS)
		return leave_unchanged(ctx);
	if (!find_decision(ctx, &d, &p, now))
		return XDP_PASS;
	DONE(d);
	if (last_part == DECISION)
		return redirect(ctx, &d);
	if (last_part == REWRITE)
		d.rule_in = d.rule_out = 0; /* nothing is counted */
	return forward_frame(ctx, &p, &d);
}

char LICENSE[] SEC("license") = "GPL";
