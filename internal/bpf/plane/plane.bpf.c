//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The programs of the eBPF engine. The one at XDP forwards packets with plain headers; what it leaves comes to the one
 * at tc, which has the whole of it; what that leaves is the stack's, and what the stack sends on in its place the
 * program at the way out completes. */
#include "frame.h"
#include "skb.h"

SEC("xdp")
int forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p = {.flow.in = ctx->ingress_ifindex};
	__u32 now = bpf_jiffies64();
	struct decision d;

	if (read_plain(data, end, sizeof(struct ethhdr), 0, &p) != PLAIN || p.ttl <= 1)
		return XDP_PASS;
	if (data + p.l3 + p.length > end || !is_ours(ctx, data))
		return XDP_PASS;
	/* The program at tc decides, as that can have the kernel look after neighbours. */
	if (!recall(&p, now, &d) || p.length > d.mtu || !d.redirects)
		return XDP_PASS;
	return forward_frame(ctx, &p, &d);
}

/* drop drops a packet for a reason. */
static __always_inline int drop(enum reason reason, __u32 bytes)
{
	count(&reasons, reason, 1, bytes);
	return TC_ACT_SHOT;
}

/* send gives a packet to the way out, with a header of Ethernet if that wants one. Where it does not, bpf_redirect takes
 * off what there is (__bpf_redirect_no_mac). */
static __always_inline void store_macs(struct __sk_buff *skb, const struct decision *d)
{
	struct ethhdr eth;

	__builtin_memcpy(eth.h_dest, d->dmac, sizeof(eth.h_dest));
	__builtin_memcpy(eth.h_source, d->smac, sizeof(eth.h_source));
	eth.h_proto = skb->protocol;
	STORE(skb, 0, &eth);
}

static __always_inline int send(struct __sk_buff *skb, __u64 l3, const struct decision *d)
{
	if (d->ethernet) {
		if (!l3 && bpf_skb_change_head(skb, sizeof(struct ethhdr), 0))
			return drop(DROPPED_HEADER, skb->len);
		store_macs(skb, d);
	}
	return bpf_redirect(d->out, 0);
}

/* send_first is send for what was decided anew: the kernel looks after the neighbour, resolves it, or asks whether it is
 * still there (neigh_event_send), as nobody else may send it anything. */
static __always_inline int send_first(struct __sk_buff *skb, __u64 l3, const struct decision *d)
{
	struct bpf_redir_neigh hop = d->hop;

	if (!l3 || !d->ethernet)
		return send(skb, l3, d);
	if (!d->unresolved)
		store_macs(skb, d);
	return bpf_redirect_neigh(d->out, &hop, sizeof(hop), 0);
}

/* total is how much of IP a buffer has. */
static __always_inline __u32 total(struct __sk_buff *skb, const struct packet *p)
{
	return skb->gso_size ? skb->len - p->l3 : p->length;
}

static __always_inline void account_skb(struct __sk_buff *skb, const struct packet *p, const struct decision *d)
{
	account(d, skb->gso_segs ? skb->gso_segs : 1, total(skb, p));
}

static __always_inline int forward_plain(struct __sk_buff *skb, __u64 l3_at, const struct packet *p, const struct decision *d, bool first)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	bool ipv6 = p->flags & IPV6;
	void *l3 = data + l3_at, *l4 = l3 + (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));

	if (l4 + 4 > end)
		return TC_ACT_UNSPEC;
	if (p->flags & PORTS)
		set_ports(l4, end, d);
	set_addresses(l3, end, ipv6, d);
	if (l3_at && d->ethernet && !d->unresolved)
		set_macs(data, d);
	account_skb(skb, p, d);
	mend_transport(skb, p, d);
	if (ipv6)
		bpf_csum_update(skb, (__u16)~htons(0x0001)); /* one hop less */
	if (first)
		return send_first(skb, l3_at, d);
	return l3_at ? bpf_redirect(d->out, 0) : send(skb, 0, d);
}

/* mark_mask are the bits of the mark by which the program at the way out, and netfilter, know what the one at the way
 * in has left half done. */
const volatile __u32 mark_mask, mark_owned, mark_hairpin;

/* leave_half translates the destination and leaves the rest to the stack. With both bits of the mark the source has yet to be
 * translated: by other mappings, where these are exchanged while the packet waits for its neighbour. */
static __always_inline int leave_half(struct __sk_buff *skb, const struct general *g, struct decision *d, bool hairpin)
{
	__u32 mark = hairpin ? mark_hairpin : d->rule_out ? mark_mask : mark_owned;

	d->src = g->packet.flow.src;
	d->sport = g->packet.flow.sport;
	d->rule_out = 0;
	sum_up(d, &g->packet);
	store(skb, g, d);
	remember_half(g, d);
	account_skb(skb, &g->packet, d);
	skb->mark = (skb->mark & ~mark_mask) | mark;
	return TC_ACT_UNSPEC;
}

/* struct work is what the general way needs for one packet, which is too large for the stack. */
struct work {
	struct general packet;
	struct decision decision;
};

MAP_OF(works, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct work, 1, 0);

static __always_inline struct work *new_work(void)
{
	__u32 only = 0;
	struct work *w = bpf_map_lookup_elem(&works, &only);

	if (w)
		__builtin_memset(w, 0, sizeof(*w));
	return w;
}

/* decide_skb is decide, a function of its own for the verifier: it checks that once. */
__noinline int decide_skb(struct __sk_buff *skb, struct decision *d, const struct packet *packet, const struct address *from)
{
	struct packet p;

	if (!d || !packet || !from)
		return PASS;
	p = *packet; /* keys of maps lie on the stack (before Linux 6.2) */
	return decide(skb, d, &p, from);
}

/* may_cut reports whether fragments may be too big for the way out, some of them or all. */
static __always_inline bool may_cut(struct __sk_buff *skb, const struct decision *d)
{
	__u32 mtu = 0;

	bpf_check_mtu(skb, 0, &mtu, 0, 0);
	return mtu > d->mtu;
}

/* with_others has a fragment go the way of those that came before. What the stack has of a packet that comes from
 * outside becomes the same by netfilter's rules; of an answer the first fragment's mark is that of the whole. */
static __always_inline int with_others(struct __sk_buff *skb, const struct header *h, struct decision *d, int v)
{
	if (d->reason == PASSED_FRAGMENT) {
		remember_way(h, skb->ifindex, LEFT);
		return PASS;
	}
	if (v == PASS)
		return PASS;
	if (h->way == LEFT && d->rule_in)
		return why(d, PASSED_FRAGMENT, PASS);
	if (v == FORWARD && (h->way != FORWARDED_ALONE || may_cut(skb, d)))
		v = why(d, TO_STACK_FRAGMENT, STACK);
	if (v == STACK && h->way == FORWARDED_ALONE)
		remember_way(h, skb->ifindex, HALVED);
	return v;
}

/* general_way is that of packets that are not forwarded by what is known of their flow. */
static __noinline int general_way(struct __sk_buff *skb, __u64 l3)
{
	struct work *w = new_work();
	struct decision *d;
	struct general *g;
	int v;

	if (!w)
		return TC_ACT_UNSPEC;
	g = &w->packet;
	d = &w->decision;
	if (read_any(skb, l3, skb->ifindex, g) != PLAIN)
		return TC_ACT_UNSPEC;
	v = decide_skb(skb, d, &g->packet, &g->outer.src);
	if (v == FORWARD) {
		if (g->packet.flags & OPTIONS)
			v = why(d, TO_STACK_OPTIONS, STACK);
		else if (g->packet.ttl <= 1)
			v = why(d, TO_STACK_TTL, STACK);
		else if (g->packet.length > d->mtu)
			v = why(d, TO_STACK_MTU, STACK);
	}
	if (g->packet.flags & FRAGMENT)
		v = with_others(skb, &g->outer, d, v);
	if (d->reason)
		count(&reasons, d->reason, 1, total(skb, &g->packet));
	switch (v) {
	case PASS:
		return TC_ACT_UNSPEC;
	case STACK:
		return leave_half(skb, g, d, d->hairpin);
	case FORWARD:
		break;
	}
	store_hop(skb, &g->outer);
	store(skb, g, d);
	account_skb(skb, &g->packet, d);
	return send_first(skb, l3, d);
}

/* plain_length is that of a packet with plain headers, or of the segments that it becomes (GSO). */
static __always_inline __u32 plain_length(struct __sk_buff *skb, __u64 l3, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *tcp = data + l3 + (p->flags & IPV6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));

	if (!skb->gso_size)
		return p->length;
	if (p->flow.protocol != IPPROTO_TCP)
		return p->l4 - p->l3 + sizeof(struct udphdr) + skb->gso_size;
	if ((void *)(tcp + 1) > end)
		return ~0u;
	return p->l4 - p->l3 + (tcp->doff_res >> 4) * 4 + skb->gso_size;
}

/* Where a packet goes on. The ways are functions that do not call each other: those share 512 bytes of stack. */
enum {
	FIRST = -2,   /* the way of a flow's first packet */
	GENERAL = -3, /* the general way */
};

/* plain_way is that of packets with plain headers whose flow is known. */
static __noinline int plain_way(struct __sk_buff *skb, __u64 l3)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct decision d;
	struct packet p;

	__builtin_memset(&p, 0, sizeof(p));
	p.flow.in = skb->ifindex;
	if (skb->pkt_type || skb->vlan_present)
		return TC_ACT_UNSPEC; /* for another host, for several, or for a VLAN */
	switch (read_plain(data, end, l3, skb->protocol, &p)) {
	case NEVER:
		return TC_ACT_UNSPEC;
	case UNUSUAL:
		return GENERAL;
	case PLAIN:
		break;
	}
	if (!skb->gso_size && p.length > skb->len - l3)
		return TC_ACT_UNSPEC; /* cut off */
	if (p.ttl <= 1)
		return GENERAL;
	if (!recall(&p, bpf_jiffies64(), &d))
		return FIRST;
	return plain_length(skb, l3, &p) <= d.mtu ? forward_plain(skb, l3, &p, &d, false) : GENERAL;
}

/* first_way is that of packets with plain headers whose flow becomes known. */
static __noinline int first_way(struct __sk_buff *skb, __u64 l3)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct work *w = new_work();
	__u32 began_in = epoch;
	struct decision *d;
	struct packet p;

	__builtin_memset(&p, 0, sizeof(p));
	p.flow.in = skb->ifindex;
	if (!w || read_plain(data, end, l3, skb->protocol, &p) != PLAIN)
		return GENERAL;
	d = &w->decision;
	switch (decide_skb(skb, d, &p, &p.flow.src)) {
	case PASS:
		if (d->reason)
			count(&reasons, d->reason, 1, total(skb, &p));
		return TC_ACT_UNSPEC;
	case STACK:
		return GENERAL;
	}
	if (plain_length(skb, l3, &p) > d->mtu)
		return GENERAL;
	if (d->unresolved)
		count(&reasons, NEIGHBOUR_ASKED, 1, total(skb, &p));
	else
		keep(d, &p, bpf_jiffies64(), began_in);
	return forward_plain(skb, l3, &p, d, true);
}

static __always_inline int come_in(struct __sk_buff *skb, __u64 l3)
{
	int action = plain_way(skb, l3);

	if (action == FIRST)
		action = first_way(skb, l3);
	return action == GENERAL ? general_way(skb, l3) : action;
}

SEC("tc")
int ingress(struct __sk_buff *skb)
{
	return come_in(skb, sizeof(struct ethhdr));
}

SEC("tc")
int ingress_without_ethernet(struct __sk_buff *skb)
{
	return come_in(skb, 0);
}

/* go_out completes what was left half done: the source is translated. An ICMP error of this host is about a packet
 * whose destination was: what it quotes gets it back. */
static __always_inline int go_out(struct __sk_buff *skb, __u32 l3)
{
	const struct interface *out;
	const struct mapping *m;
	__u32 mark = skb->mark & mark_mask, index = skb->ifindex;
	struct decision *d;
	struct general *g;
	struct work *w;
	struct sought is;

	if (mark)
		skb->mark &= ~mark_mask;
	else if (skb->ingress_ifindex || !carries_icmp(skb, l3))
		return TC_ACT_UNSPEC;
	out = bpf_map_lookup_elem(&interfaces, &index);
	w = new_work();
	if (!out || !w)
		return TC_ACT_UNSPEC;
	g = &w->packet;
	d = &w->decision;
	if (read_any(skb, l3, HALF, g) != PLAIN)
		return TC_ACT_UNSPEC;
	if (!mark && !(g->packet.flags & ERROR))
		return TC_ACT_UNSPEC;
	m = find_source(&g->packet, source_roles(mark == mark_hairpin, out->roles), &is);
	if (!m) {
		if (!mark || (mark == mark_owned && !is.later))
			return TC_ACT_UNSPEC;
		return drop(DROPPED_UNMAPPED, total(skb, &g->packet)); /* rather than with an address that is the inside's */
	}
	d->src = g->packet.flow.src;
	d->dst = g->packet.flow.dst;
	d->sport = m->port ? m->port : g->packet.flow.sport;
	d->dport = g->packet.flow.dport;
	if (!map(m, &d->src))
		return mark ? drop(DROPPED_UNMAPPABLE, total(skb, &g->packet)) : TC_ACT_UNSPEC;
	sum_up(d, &g->packet);
	if (!mark && !equal(&g->outer.src, &g->packet.flow.src))
		g->packet.flags |= OWN;
	store(skb, g, d);
	d->rule_out = m->rule;
	account_skb(skb, &g->packet, d);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int egress(struct __sk_buff *skb)
{
	return go_out(skb, sizeof(struct ethhdr));
}

SEC("tc")
int egress_without_ethernet(struct __sk_buff *skb)
{
	return go_out(skb, 0);
}

char LICENSE[] SEC("license") = "GPL";
