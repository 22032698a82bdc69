/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Where a packet goes, and as what: mappings, routes, and the memory of both. */
#pragma once

#include "../include/csum.h"
#include "packet.h"

#define MAP_OF(name, kind, key_type, value_type, entries, flags) \
	struct {                                                 \
		__uint(type, kind);                              \
		__type(key, key_type);                           \
		__type(value, value_type);                       \
		__uint(max_entries, entries);                    \
		__uint(map_flags, flags);                        \
	} name SEC(".maps")

/* Mappings of destinations and of sources: by address, by protocol and port of one, by prefix. */
MAP_OF(destinations, BPF_MAP_TYPE_HASH, struct address, struct mapping, 1, 0);
MAP_OF(destination_services, BPF_MAP_TYPE_HASH, struct service, struct mapping, 1, 0);
MAP_OF(destination_prefixes, BPF_MAP_TYPE_LPM_TRIE, struct prefix, struct mapping, 1, BPF_F_NO_PREALLOC);
MAP_OF(sources, BPF_MAP_TYPE_HASH, struct address, struct mapping, 1, 0);
MAP_OF(source_services, BPF_MAP_TYPE_HASH, struct service, struct mapping, 1, 0);
MAP_OF(source_prefixes, BPF_MAP_TYPE_LPM_TRIE, struct prefix, struct mapping, 1, BPF_F_NO_PREALLOC);
MAP_OF(macs, BPF_MAP_TYPE_ARRAY, __u32, struct mac, 1, 0);
MAP_OF(interfaces, BPF_MAP_TYPE_HASH, __u32, struct interface, 1, 0);

/* Which of these have anything. */
const volatile bool has_services;
const volatile bool has_destination_prefixes;
const volatile bool has_source_prefixes;

/* keep_jiffies is how long a decision is kept: as long routes and neighbours that changed may stay in use. */
const volatile __u32 keep_jiffies;

const volatile struct about identity SEC(".rodata.about");

/* struct decision is where the packets of a flow go, and as what. */
struct decision {
	struct address src, dst;
	__be16 sport, dport;
	__u32 out;
	__u8 dmac[6], smac[6];
	__u16 l3_sum;    /* what the IPv4 header's checksum changes by, the TTL included */
	__u16 l4_sum;    /* … that of the transport, by the addresses */
	__u16 ports_sum; /* … and by the ports */
	__u16 mtu;
	__u16 rule_in, rule_out;
	struct bpf_redir_neigh hop;
	__u8 reason;    /* enum reason, where it is not forwarded */
	bool redirects; /* out takes frames of XDP */
	bool ethernet;  /* out has its header */
	bool hairpin;
	bool unresolved; /* the neighbour's address is not known yet */
};

MAP_OF(rules, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct count, 1, 0);
MAP_OF(reasons, BPF_MAP_TYPE_PERCPU_ARRAY, enum reason, struct count, REASONS, 0);

enum verdict {
	PASS,    /* to the stack, as it is */
	STACK,   /* to the stack, as to where it is translated */
	FORWARD,
};

static __always_inline void count(const void *map, __u32 index, __u32 packets, __u64 bytes)
{
	struct count *c = bpf_map_lookup_elem(map, &index);

	if (c) {
		c->packets += packets;
		c->bytes += bytes;
	}
}

static __always_inline bool fits(const struct mapping *m, __u32 roles)
{
	return m && m->flags & MAPS && m->roles & roles;
}

/* struct sought is what find has to say beside a mapping. */
struct sought {
	bool later; /* in: ports are not known; out: and it depends on them */
	bool known; /* the address has mappings, for this packet or for others */
};

/* find returns the most specific mapping of one end of packets. */
static __always_inline const struct mapping *find(const void *hosts, const void *services, const void *prefixes, bool has_prefixes,
						  const struct address *a, __u8 protocol, __be16 port, __u32 roles, struct sought *is)
{
	const struct mapping *m = bpf_map_lookup_elem(hosts, a), *narrow;

	if (has_services && m && m->flags & SERVICES) {
		struct service s = {.address = *a, .port = port, .protocol = protocol};

		if (is->later)
			return 0;
		narrow = bpf_map_lookup_elem(services, &s);
		if (fits(narrow, roles))
			return narrow;
		s.port = 0;
		narrow = bpf_map_lookup_elem(services, &s);
		if (fits(narrow, roles))
			return narrow;
	}
	is->later = false;
	is->known = m;
	if (fits(m, roles))
		return m;
	if (has_prefixes) {
		struct prefix p = {.length = 128, .address = *a};

		m = bpf_map_lookup_elem(prefixes, &p);
		is->known |= !!m;
		if (fits(m, roles))
			return m;
	}
	return 0;
}

static __always_inline const struct mapping *find_destination(const struct packet *p, __u32 roles, struct sought *is)
{
	is->later = p->flags & LATER;
	return find(&destinations, &destination_services, &destination_prefixes, has_destination_prefixes, &p->flow.dst,
		    p->flow.protocol, p->flow.dport, roles, is);
}

static __always_inline const struct mapping *find_source(const struct packet *p, __u32 roles, struct sought *is)
{
	is->later = p->flags & LATER;
	return find(&sources, &source_services, &source_prefixes, has_source_prefixes, &p->flow.src, p->flow.protocol,
		    p->flow.sport, roles, is);
}

/* adjust has the first 16-bit word that can take up what the prefixes differ by (RFC 6296, 3.4 and 3.5). */
static __always_inline bool adjust(const struct mapping *m, struct address *a)
{
	for (int i = 3; i < 8; i++) {
		__be16 *word = (__be16 *)a->w + i;
		__u32 sum;

		if (i < m->word || (m->word > 3 && *word == 0xffff))
			continue;
		sum = (__u32)*word + m->adjust;
		sum = (sum & 0xffff) + (sum >> 16);
		*word = sum == 0xffff ? 0 : sum;
		return true;
	}
	return false;
}

/* map makes of an address what a mapping has for it; false where there is nothing. */
static __always_inline bool map(const struct mapping *m, struct address *a)
{
	for (int i = 0; i < 4; i++)
		a->w[i] = m->to.w[i] | (a->w[i] & m->stay.w[i]);
	return !(m->flags & NEUTRAL) || adjust(m, a);
}

enum {
	AF_INET = 2,
	AF_INET6 = 10,
};

/* ask_route fills in a question to the routes. Its length is 1, so that the answer has the MTU and is not FRAG_NEEDED,
 * without an interface. */
static __always_inline void ask_route(struct bpf_fib_lookup *fib, const struct packet *p, const struct address *src, const struct address *dst)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = p->flow.in;
	fib->l4_protocol = p->flow.protocol;
	fib->tot_len = 1;
	if (p->flags & IPV6) {
		fib->family = AF_INET6;
		fib->tos_or_flowinfo = htonl((__u32)p->flow.tos << 20);
		set_ipv6((struct address *)fib->src, src->w);
		set_ipv6((struct address *)fib->dst, dst->w);
		return;
	}
	fib->family = AF_INET;
	*(__u8 *)&fib->tos_or_flowinfo = p->flow.tos;
	fib->src[0] = src->w[3];
	fib->dst[0] = dst->w[3];
}

/* is_backwards reports whether a route leads back to the source by where the packet came in, as far as the interface
 * asks for it (net.ipv4.conf.*.rp_filter, Documentation/networking/ip-sysctl.rst). */
static __always_inline bool is_backwards(void *ctx, struct bpf_fib_lookup *fib, const struct interface *in, const struct packet *p,
					 const struct address *from, const struct address *dst)
{
	long answer;

	if (p->flags & IPV6)
		return true;
	ask_route(fib, p, dst, from);
	answer = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	if (answer == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return true; /* it comes out with the way ahead */
	if (in->rp_filter == RP_FILTER_OFF) /* but none of this host's own (fib_validate_source) */
		return answer != BPF_FIB_LKUP_RET_NOT_FWDED;
	if (answer != BPF_FIB_LKUP_RET_SUCCESS && answer != BPF_FIB_LKUP_RET_NO_NEIGH)
		return false;
	return in->rp_filter == RP_FILTER_LOOSE || fib->ifindex == p->flow.in;
}

static __always_inline __u64 words(const struct address *a)
{
	return (__u64)a->w[0] + a->w[1] + a->w[2] + a->w[3];
}

/* difference is what a sum over from changes by where to takes its place; 0 where it does not. */
static __always_inline __u16 difference(__u64 from, __u64 to)
{
	__u16 sum = csum_fold(to + (__u16)~csum_fold(from));

	return sum == 0xffff ? 0 : sum;
}

static __always_inline void sum_up(struct decision *d, const struct packet *p)
{
	d->l4_sum = difference(words(&p->flow.src) + words(&p->flow.dst), words(&d->src) + words(&d->dst));
	d->l3_sum = csum_fold((__u64)d->l4_sum + (__u16)~htons(0x0100));
	d->ports_sum = difference((__u64)p->flow.sport + p->flow.dport, (__u64)d->sport + d->dport);
}

static __always_inline enum verdict why(struct decision *d, enum reason reason, enum verdict v)
{
	d->reason = reason;
	return v;
}

/* source_roles are what a mapping of sources has to have one of. */
static __always_inline __u32 source_roles(bool hairpin, __u32 out_roles)
{
	return hairpin ? ROLE_INSIDE : out_roles & ~ROLE_INSIDE;
}

/* choose_source translates the source, now that the way out is known. */
static __always_inline enum verdict choose_source(struct decision *d, const struct packet *p, const struct interface *in, __u32 out_roles,
						  bool translated)
{
	bool hairpin = translated && in->roles & out_roles & ROLE_INSIDE;
	struct sought is;
	const struct mapping *m = find_source(p, source_roles(hairpin, out_roles), &is);

	d->hairpin = hairpin;
	if (is.later)
		return why(d, PASSED_FRAGMENT, PASS);
	if (!m)
		return hairpin ? why(d, PASSED_HAIRPIN, PASS) : translated ? FORWARD : PASS;
	if (!map(m, &d->src))
		return why(d, PASSED_UNMAPPABLE, PASS);
	if (m->port)
		d->sport = m->port;
	d->rule_out = m->rule;
	return FORWARD;
}

/* decide finds out where a packet goes, and as what. from is its own source, which is not that of its flow where it is an
 * ICMP error. */
static __always_inline enum verdict decide(void *ctx, struct decision *d, const struct packet *p, const struct address *from)
{
	__u32 index = p->flow.in;
	const struct interface *in = bpf_map_lookup_elem(&interfaces, &index), *out;
	struct bpf_fib_lookup fib;
	const struct mapping *m;
	enum verdict v;
	struct sought is;
	bool translated;
	long answer;

	d->reason = NO_REASON;
	if (!in || !identity.version || is_unroutable(&p->flow.src, p->flags & IPV6) || is_unroutable(&p->flow.dst, p->flags & IPV6) ||
	    is_unroutable(from, p->flags & IPV6))
		return PASS;
	d->src = p->flow.src;
	d->dst = p->flow.dst;
	d->sport = p->flow.sport;
	d->dport = p->flow.dport;
	d->rule_in = d->rule_out = 0;
	m = find_destination(p, in->roles, &is);
	if (is.later)
		return why(d, PASSED_FRAGMENT, PASS);
	translated = m;
	if (m) {
		if (!map(m, &d->dst))
			return why(d, PASSED_UNMAPPABLE, PASS);
		if (m->port)
			d->dport = m->port;
		d->rule_in = m->rule;
		if (equal(&d->dst, &p->flow.src))
			return why(d, PASSED_HAIRPIN, PASS); /* to itself: or an answer to a host that netfilter masks */
	} else if (is.known) {
		return why(d, PASSED_HAIRPIN, PASS); /* such an answer, or what no mapping is for */
	} else if (!find_source(p, ~0u, &is) && !is.later) {
		return PASS;
	}
	if (!is_backwards(ctx, &fib, in, p, from, &d->dst))
		return why(d, PASSED_RP_FILTER, PASS);
	if (is_unroutable(&d->dst, p->flags & IPV6))
		return translated ? why(d, PASSED_LOCAL, PASS) : PASS;
	ask_route(&fib, p, from, &d->dst);
	fib.sport = p->flow.sport;
	fib.dport = d->dport;
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	if (answer == BPF_FIB_LKUP_RET_NOT_FWDED || answer == BPF_FIB_LKUP_RET_FWD_DISABLED || answer < 0)
		return translated ? why(d, PASSED_LOCAL, PASS) : PASS;
	if (answer != BPF_FIB_LKUP_RET_SUCCESS && answer != BPF_FIB_LKUP_RET_NO_NEIGH)
		return translated ? why(d, TO_STACK_ROUTE, STACK) : PASS;
	d->out = index = fib.ifindex;
	out = bpf_map_lookup_elem(&interfaces, &index);
	if (!out)
		return why(d, PASSED_INTERFACE, PASS);
	v = choose_source(d, p, in, out->roles, translated);
	if (v != FORWARD)
		return v;
	d->unresolved = answer == BPF_FIB_LKUP_RET_NO_NEIGH;
	if (d->unresolved) {
		/* The MTU is not known, either; and without a header of Ethernet the kernel resolves nothing. */
		if (p->length > LEAST_MTU || in->flags & NO_ETHERNET)
			return why(d, TO_STACK_NEIGHBOUR, STACK);
		d->reason = NEIGHBOUR_ASKED;
		fib.tot_len = LEAST_MTU;
	}
	d->hop.nh_family = fib.family; /* that of the next hop (RFC 5549) */
	set_ipv6((struct address *)d->hop.nh, fib.dst);
	__builtin_memcpy(d->dmac, fib.dmac, sizeof(d->dmac));
	__builtin_memcpy(d->smac, fib.smac, sizeof(d->smac));
	d->mtu = fib.tot_len;
	d->redirects = out->flags & REDIRECT && !((in->flags | out->flags) & NO_ETHERNET);
	d->ethernet = !(out->flags & NO_ETHERNET);
	sum_up(d, p);
	return FORWARD;
}

/* account counts what is forwarded. */
static __always_inline void account(const struct decision *d, __u32 packets, __u32 bytes)
{
	if (d->rule_in)
		count(&rules, d->rule_in, packets, bytes);
	if (d->rule_out)
		count(&rules, d->rule_out, packets, bytes);
}
