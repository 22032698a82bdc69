/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The general way, at tc: packets with options, extension headers, fragments and ICMP errors, in socket buffers whose
 * data need not lie in one piece. Helpers read and write there, and keep skb->csum right. */
#pragma once

#include "rewrite.h"

/* Fragments of one packet go one way: the stack puts together those that it gets, and waits for all. */
struct fragment {
	struct address src, dst;
	__be32 id;
	__u32 in; /* or HALF */
	__u8 protocol;
	__u8 pad[3];
};

enum {
	HALF = 0, /* what was left half done, at the way out */
};

struct ports {
	__be16 source, destination;
};

enum way {
	FORWARDED_ALONE,
	LEFT,   /* the stack has one as it came, whose ports were not known */
	HALVED, /* the stack has one, as to where it is translated */
};

/* struct remembered are the ports of a packet, and the way of its fragments that came, as long as others may come: later
 * another packet has its number. */
struct remembered {
	__u64 until; /* ns since the host started */
	struct ports ports;
	enum way way;
};

#define REASSEMBLY 30000000000ull /* as net.ipv4.ipfrag_time is, if nobody changed it; RFC 8200 has a minute at most */

MAP_OF(fragments, BPF_MAP_TYPE_LRU_HASH, struct fragment, struct remembered, FRAGMENTS, 0);

static __always_inline void remember(const struct fragment *f, const struct ports *ports, enum way way)
{
	struct remembered r = {.until = bpf_ktime_get_ns() + REASSEMBLY, .ports = *ports, .way = way};

	bpf_map_update_elem(&fragments, f, &r, BPF_ANY);
}

static __always_inline const struct remembered *remembered_of(const struct fragment *f)
{
	const struct remembered *r = bpf_map_lookup_elem(&fragments, f);

	return r && bpf_ktime_get_ns() <= r->until ? r : 0;
}

/* struct header is an IP header and what follows it: of a packet, or of one that an ICMP error quotes. */
struct header {
	struct address src, dst;
	struct ports ports;
	__be32 id;
	__u32 l3, l4, end; /* of the packet, or of what is quoted of it */
	__u16 length; /* as it says itself */
	__u8 protocol;
	__u8 tos, ttl;
	__u8 check_at; /* as of a packet */
	__u8 way; /* enum way */
	bool ipv6, options, fragment, later, has_ports;
};

#define LOAD(skb, at, to) (!bpf_skb_load_bytes(skb, at, to, sizeof(*(to))))
#define STORE(skb, at, from) bpf_skb_store_bytes(skb, at, from, sizeof(*(from)), 0)

static __always_inline bool load_ipv4(struct __sk_buff *skb, struct header *h)
{
	struct iphdr ip;

	if (!LOAD(skb, h->l3, &ip) || ip.version_ihl >> 4 != 4 || (ip.version_ihl & 15) < 5)
		return false;
	set_ipv4(&h->src, ip.saddr);
	set_ipv4(&h->dst, ip.daddr);
	h->l4 = h->l3 + (ip.version_ihl & 15) * 4;
	h->length = ntohs(ip.tot_len);
	h->protocol = ip.protocol;
	h->tos = ip.tos;
	h->ttl = ip.ttl;
	h->id = ip.id;
	h->options = (ip.version_ihl & 15) > 5;
	h->fragment = ip.frag_off & htons(0x3fff);
	h->later = ip.frag_off & htons(0x1fff);
	return true;
}

/* load_extension goes behind one extension header: another thing is there then (UNUSUAL), or there was none (PLAIN). A
 * packet that is routed by way of several destinations has a checksum that covers the last one: it is left alone. */
static __always_inline enum parsed load_extension(struct __sk_buff *skb, struct header *h)
{
	struct {
		__u8 next, length;
		__be16 offset;
		__be32 id;
	} e;

	if (h->later || !is_extension(h->protocol))
		return PLAIN;
	if (!LOAD(skb, h->l4, &e))
		return NEVER;
	if (h->protocol == IPPROTO_ROUTING && e.offset & htons(0x00ff))
		return NEVER;
	if (h->protocol == IPPROTO_HOPOPTS)
		h->options = true;
	if (h->protocol == IPPROTO_FRAGMENT) {
		h->fragment = e.offset & htons(0xfff9); /* one alone is none (RFC 6946) */
		h->later = e.offset & htons(0xfff8);
		h->id = e.id;
		h->l4 += 8;
	} else {
		h->l4 += (e.length + 1) * 8;
	}
	h->protocol = e.next;
	return UNUSUAL;
}

enum {
	EXTENSIONS = 6, /* packets with more are left to the stack */
};

static __always_inline bool load_ipv6(struct __sk_buff *skb, struct header *h)
{
	struct ipv6hdr ip;

	if (!LOAD(skb, h->l3, &ip) || (ip.version_class_flow & htonl(0xf0000000)) != htonl(6u << 28))
		return false;
	set_ipv6(&h->src, ip.saddr);
	set_ipv6(&h->dst, ip.daddr);
	h->ipv6 = true;
	h->l4 = h->l3 + sizeof(ip);
	h->length = ntohs(ip.payload_len) + sizeof(ip);
	h->protocol = ip.nexthdr;
	h->tos = ntohl(ip.version_class_flow) >> 20;
	h->ttl = ip.hop_limit;
	for (int i = 0; i < EXTENSIONS; i++) {
		enum parsed next = load_extension(skb, h);

		if (next != UNUSUAL)
			return next == PLAIN;
	}
	return false;
}

/* load_header reads the header of a packet, or of one that is quoted, as far as end. */
static __always_inline bool load_header(struct __sk_buff *skb, bool ipv6, __u32 end, struct header *h)
{
	__u16 check;

	if (!(ipv6 ? load_ipv6(skb, h) : load_ipv4(skb, h)) || h->l4 > end)
		return false;
	h->end = end;
	if (h->later)
		return true;
	h->has_ports = has_ports(h->protocol) && h->l4 + sizeof(h->ports) <= end && LOAD(skb, h->l4, &h->ports);
	h->check_at = checksum_at(ipv6, h->protocol);
	if (h->l4 + h->check_at + sizeof(check) > end)
		h->check_at = 0; /* it is not quoted */
	if (h->protocol == IPPROTO_UDP && LOAD(skb, h->l4 + h->check_at, &check) && !check)
		h->check_at = 0; /* RFC 768, 6935 */
	return true;
}

/* is_whole reports whether a packet has the length that it says, and what is needed of its transport. */
static __always_inline bool is_whole(struct __sk_buff *skb, struct header *h)
{
	if (skb->gso_size)
		return true;
	if (h->length > skb->len - h->l3)
		return false;
	h->end = h->l3 + h->length;
	return h->l4 + (h->later ? 0 : needs(h->ipv6, h->protocol)) <= h->end;
}

/* lacks_ports reports whether a fragment would have ports, or may have, had it all that precedes it. */
static __always_inline bool lacks_ports(const struct header *h)
{
	return h->later && (has_ports(h->protocol) || (h->ipv6 && is_extension(h->protocol)));
}

static __always_inline void set_fragment(struct fragment *f, const struct header *h, __u32 in)
{
	f->src = h->src;
	f->dst = h->dst;
	f->id = h->id;
	f->in = in;
	f->protocol = h->protocol;
}

/* remember_ports keeps those of a first fragment, or finds them for a later one, and which way others went. */
static __always_inline void remember_ports(struct header *h, __u32 in)
{
	const struct remembered *known;
	struct fragment f = {};

	if (!h->fragment)
		return;
	set_fragment(&f, h, in);
	known = remembered_of(&f);
	if (known)
		h->way = known->way;
	if (!has_services || h->way == LEFT)
		return;
	if (h->has_ports) {
		remember(&f, &h->ports, h->way);
		return;
	}
	if (!known || !has_ports(h->protocol))
		return;
	h->ports = known->ports;
	h->later = false; /* what it is for is known now */
}

/* remember_way has the fragments that follow go the way of this one. */
static __always_inline void remember_way(const struct header *h, __u32 in, enum way way)
{
	struct fragment f = {};

	set_fragment(&f, h, in);
	remember(&f, &h->ports, way);
}

/* carries_icmp reports whether a packet is of ICMP, without extension headers. */
static __always_inline bool carries_icmp(struct __sk_buff *skb, __u32 l3)
{
	bool ipv6 = skb->protocol == htons(ETH_P_IPV6);
	__u8 protocol;

	if (!ipv6 && skb->protocol != htons(ETH_P_IP))
		return false;
	l3 += ipv6 ? __builtin_offsetof(struct ipv6hdr, nexthdr) : __builtin_offsetof(struct iphdr, protocol);
	return LOAD(skb, l3, &protocol) && is_icmp(ipv6, protocol);
}

/* struct general is a packet on the general way. */
struct general {
	struct packet packet;
	struct header outer, quoted; /* quoted of an ICMP error */
};

static __always_inline void set_flow(struct packet *p, const struct header *h)
{
	p->flow.src = h->src;
	p->flow.dst = h->dst;
	p->flow.sport = h->ports.source;
	p->flow.dport = h->ports.destination;
	p->flow.protocol = h->protocol;
	p->flags |= lacks_ports(h) ? LATER : 0;
}

/* read_error takes the inverse of the flow that an ICMP error is about: it goes to where that came from. One to
 * another address is none of that flow. */
static __always_inline bool read_error(struct __sk_buff *skb, struct general *g)
{
	struct header *q = &g->quoted;
	struct packet *p = &g->packet;

	q->l3 = g->outer.l4 + 8;
	if (!load_header(skb, g->outer.ipv6, g->outer.end, q) || !equal(&q->src, &g->outer.dst))
		return false;
	p->flow.src = q->dst;
	p->flow.dst = q->src;
	p->flow.sport = q->ports.destination;
	p->flow.dport = q->ports.source;
	p->flow.protocol = q->protocol;
	p->flags |= ERROR | (lacks_ports(q) ? LATER : 0);
	return true;
}

/* segment_length is that of the largest packet that a buffer becomes (GSO). */
static __always_inline __u32 segment_length(struct __sk_buff *skb, const struct header *h)
{
	__u8 offset = 0;

	if (!skb->gso_size)
		return h->length;
	if (h->protocol != IPPROTO_TCP)
		return h->l4 - h->l3 + 8 + skb->gso_size;
	LOAD(skb, h->l4 + 12, &offset);
	return h->l4 - h->l3 + (offset >> 4) * 4 + skb->gso_size;
}

/* read_any reads what read_plain found unusual. g is all 0. */
static __always_inline enum parsed read_any(struct __sk_buff *skb, __u32 l3, __u32 in, struct general *g)
{
	struct packet *p = &g->packet;
	struct header *h = &g->outer;
	__u8 type;

	h->l3 = l3;
	if (!load_header(skb, skb->protocol == htons(ETH_P_IPV6), skb->len, h) || !is_whole(skb, h))
		return NEVER;
	remember_ports(h, in);
	set_flow(p, h);
	p->flow.in = in;
	p->flow.tos = h->tos & DSCP;
	p->l3 = l3;
	p->l4 = h->l4;
	p->ttl = h->ttl;
	p->length = segment_length(skb, h);
	p->flags |= (h->ipv6 ? IPV6 : 0) | (h->has_ports ? PORTS : 0) | (h->options ? OPTIONS : 0) | (h->fragment ? FRAGMENT : 0);
	p->check_at = h->check_at;
	if (is_icmp(h->ipv6, h->protocol) && !h->later) {
		if (!LOAD(skb, h->l4, &type) || stays(h->ipv6, type))
			return NEVER;
		if (is_error(h->ipv6, type))
			return read_error(skb, g) ? PLAIN : NEVER;
	}
	return PLAIN;
}

/* store_addresses puts those of an IP header in place, with its checksum. */
static __always_inline void store_addresses(struct __sk_buff *skb, const struct header *h, const struct address *src, const struct address *dst)
{
	if (h->ipv6) {
		STORE(skb, h->l3 + __builtin_offsetof(struct ipv6hdr, saddr), src);
		STORE(skb, h->l3 + __builtin_offsetof(struct ipv6hdr, daddr), dst);
		return;
	}
	bpf_l3_csum_replace(skb, h->l3 + __builtin_offsetof(struct iphdr, check), 0,
			    difference(words(&h->src) + words(&h->dst), words(src) + words(dst)), 0);
	STORE(skb, h->l3 + __builtin_offsetof(struct iphdr, saddr), &src->w[3]);
	STORE(skb, h->l3 + __builtin_offsetof(struct iphdr, daddr), &dst->w[3]);
}

static __always_inline void store_hop(struct __sk_buff *skb, const struct header *h)
{
	__u8 ttl = h->ttl - 1;

	if (h->ipv6)
		bpf_csum_update(skb, (__u16)~htons(0x0001));
	else
		bpf_l3_csum_replace(skb, h->l3 + __builtin_offsetof(struct iphdr, check), 0, (__u16)~htons(0x0100), 0);
	STORE(skb, h->l3 + (h->ipv6 ? __builtin_offsetof(struct ipv6hdr, hop_limit) : __builtin_offsetof(struct iphdr, ttl)), &ttl);
}

/* mend_checksum changes that of a transport by what the addresses and the ports changed by, and skb->csum where the card
 * has summed the packet up (CHECKSUM_COMPLETE). There the helper takes the addresses' change out, as IPv4's own checksum
 * makes up for it. IPv6 has none: it is put back (by hand, as kernels before 6.16 lack BPF_F_IPV6). */
static __always_inline void mend_checksum(struct __sk_buff *skb, __u32 at, __u8 protocol, bool ipv6, __u16 addresses, __u16 ports)
{
	__u64 zero = never_zero(protocol) ? BPF_F_MARK_MANGLED_0 : 0;

	if (addresses)
		bpf_l4_csum_replace(skb, at, 0, addresses, BPF_F_PSEUDO_HDR | zero);
	if (ports)
		bpf_l4_csum_replace(skb, at, 0, ports, zero);
	if (ipv6 && addresses)
		bpf_csum_update(skb, addresses);
}

/* mend_transport does that where there is such a checksum; else what changed remains in skb->csum. */
static __always_inline void mend_transport(struct __sk_buff *skb, const struct packet *p, const struct decision *d)
{
	bool ipv6 = p->flags & IPV6;
	__u16 rest = (p->flags & PORTS ? d->ports_sum : 0);

	if (p->check_at) {
		mend_checksum(skb, p->l4 + p->check_at, p->flow.protocol, ipv6, d->l4_sum, d->ports_sum);
		return;
	}
	if (ipv6)
		rest = csum_fold((__u64)rest + d->l4_sum);
	if (rest)
		bpf_csum_update(skb, rest);
}

/* store_packet changes both ends of a packet. */
static __always_inline void store_packet(struct __sk_buff *skb, const struct general *g, const struct decision *d)
{
	const struct packet *p = &g->packet;
	struct ports ports = {d->sport, d->dport};

	store_addresses(skb, &g->outer, &d->src, &d->dst);
	if (p->flags & PORTS)
		STORE(skb, p->l4, &ports);
	mend_transport(skb, p, d);
}

/* store_quoted changes the transport of a packet that is quoted, which has the ends the other way round. It returns what
 * a sum over it changes by. */
static __always_inline __u16 store_quoted(struct __sk_buff *skb, const struct header *q, const struct decision *d)
{
	struct ports ports = {d->dport, d->sport};
	__u16 check, mended, sum = 0;

	if (q->has_ports) {
		STORE(skb, q->l4, &ports);
		sum = d->ports_sum;
	}
	if (!q->check_at || !LOAD(skb, q->l4 + q->check_at, &check))
		return sum;
	mended = changed(check, csum_fold((__u64)d->l4_sum + d->ports_sum));
	if (never_zero(q->protocol) && !mended)
		mended = 0xffff;
	STORE(skb, q->l4 + q->check_at, &mended);
	return csum_fold((__u64)sum + mended + (__u16)~check);
}

/* store_error changes an ICMP error and the packet that it quotes. Its own source changes with that of the flow. What the
 * quoted header of IPv4 and its checksum change by adds up to nothing. */
static __always_inline void store_error(struct __sk_buff *skb, const struct general *g, const struct decision *d)
{
	const struct header *h = &g->outer, *q = &g->quoted;
	bool keeps = g->packet.flags & OWN || equal(&d->src, &g->packet.flow.src);
	struct address src = keeps ? h->src : d->src;
	__u16 sum, outer = difference(words(&h->src) + words(&h->dst), words(&src) + words(&d->dst));

	store_addresses(skb, h, &src, &d->dst);
	store_addresses(skb, q, &d->dst, &d->src);
	sum = store_quoted(skb, q, d);
	if (h->ipv6)
		sum = csum_fold((__u64)sum + d->l4_sum);
	mend_checksum(skb, h->l4 + 2, h->protocol, h->ipv6, h->ipv6 ? outer : 0, sum);
}

static __always_inline void store(struct __sk_buff *skb, const struct general *g, const struct decision *d)
{
	if (g->packet.flags & ERROR)
		store_error(skb, g, d);
	else
		store_packet(skb, g, d);
}

/* remember_half keeps the ports of a fragment for the program at the way out, for which others may be the first ones. */
static __always_inline void remember_half(const struct general *g, const struct decision *d)
{
	struct ports ports = {d->sport, d->dport};
	struct fragment f = {};

	set_fragment(&f, &g->outer, HALF);
	f.dst = d->dst;
	if (has_services && g->packet.flags & FRAGMENT && has_ports(f.protocol) && !(g->packet.flags & LATER))
		remember(&f, &ports, FORWARDED_ALONE);
}
