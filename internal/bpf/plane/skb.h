/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The general way, at tc: packets with options, extension headers, fragments and ICMP errors, in socket buffers whose
 * data need not lie in one piece. Helpers read and write there, and keep skb->csum right. */
#pragma once

#include "rewrite.h"

/* Ports of the first fragments of packets: those that follow have none. */
struct fragment {
	struct address src, dst;
	__be32 id;
	__u32 in;
	__u8 protocol;
	__u8 pad[3];
};

struct ports {
	__be16 source, destination;
};

MAP_OF(fragments, BPF_MAP_TYPE_LRU_HASH, struct fragment, struct ports, FRAGMENTS, 0);

/* struct header is an IP header and what follows it: of a packet, or of one that an ICMP error quotes. */
struct header {
	struct address src, dst;
	struct ports ports;
	__be32 id;
	__u32 l3, l4;
	__u16 length; /* as it says itself */
	__u8 protocol;
	__u8 tos, ttl;
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

/* load_extension goes behind one extension header; false where there is none, or it cannot be read. */
static __always_inline bool load_extension(struct __sk_buff *skb, struct header *h)
{
	struct {
		__u8 next, length;
		__be16 offset;
		__be32 id;
	} e;

	switch (h->protocol) {
	case IPPROTO_HOPOPTS:
		h->options = true;
		break;
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
	case IPPROTO_MH:
	case IPPROTO_FRAGMENT:
		break;
	default:
		return false;
	}
	if (!LOAD(skb, h->l4, &e))
		return false;
	if (h->protocol == IPPROTO_FRAGMENT) {
		h->fragment = e.offset & htons(0xfff9); /* one alone is none (RFC 6946) */
		h->later = e.offset & htons(0xfff8);
		h->id = e.id;
		h->l4 += 8;
	} else {
		h->l4 += (e.length + 1) * 8;
	}
	h->protocol = e.next;
	return !h->later;
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
	for (int i = 0; i < EXTENSIONS; i++)
		if (!load_extension(skb, h))
			return true;
	return false;
}

static __always_inline bool load_header(struct __sk_buff *skb, bool ipv6, struct header *h)
{
	if (!(ipv6 ? load_ipv6(skb, h) : load_ipv4(skb, h)))
		return false;
	h->has_ports = has_ports(h->protocol) && !h->later && LOAD(skb, h->l4, &h->ports);
	return true;
}

/* remember_ports keeps those of a first fragment, or finds them for a later one. */
static __always_inline void remember_ports(struct header *h, __u32 in)
{
	struct fragment f = {.src = h->src, .dst = h->dst, .id = h->id, .in = in, .protocol = h->protocol};
	struct ports *known;

	if (!has_services || !h->fragment)
		return;
	if (h->has_ports) {
		bpf_map_update_elem(&fragments, &f, &h->ports, BPF_ANY);
		return;
	}
	known = bpf_map_lookup_elem(&fragments, &f);
	if (!known)
		return;
	h->ports = *known;
	h->later = false; /* what it is for is known now */
}

/* is_icmp reports whether a packet is of ICMP, without extension headers. */
static __always_inline bool is_icmp(struct __sk_buff *skb, __u32 l3)
{
	__u8 protocol = 0;

	if (skb->protocol == htons(ETH_P_IPV6))
		return LOAD(skb, l3 + __builtin_offsetof(struct ipv6hdr, nexthdr), &protocol) && protocol == IPPROTO_ICMPV6;
	return skb->protocol == htons(ETH_P_IP) && LOAD(skb, l3 + __builtin_offsetof(struct iphdr, protocol), &protocol) &&
	       protocol == IPPROTO_ICMP;
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
	p->flags |= h->later && has_ports(h->protocol) ? LATER : 0;
}

/* read_error takes the inverse of the flow that an ICMP error is about: it goes to where that came from. One to
 * another address is none of that flow. */
static __always_inline bool read_error(struct __sk_buff *skb, struct general *g)
{
	struct header *q = &g->quoted;
	struct packet *p = &g->packet;

	q->l3 = g->outer.l4 + 8;
	if (!load_header(skb, g->outer.ipv6, q) || !equal(&q->src, &g->outer.dst))
		return false;
	p->flow.src = q->dst;
	p->flow.dst = q->src;
	p->flow.sport = q->ports.destination;
	p->flow.dport = q->ports.source;
	p->flow.protocol = q->protocol;
	p->flags |= ERROR | (q->later && has_ports(q->protocol) ? LATER : 0);
	return true;
}

/* segment_length is that of the largest packet that a buffer becomes (GSO). */
static __always_inline __u32 segment_length(struct __sk_buff *skb, const struct header *h)
{
	__u32 length = skb->len - h->l3;
	__u8 offset = 0;

	if (!skb->gso_size)
		return length < h->length || !h->length ? length : h->length;
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
	struct ethhdr eth;
	__u8 type;

	h->l3 = l3;
	if (!load_header(skb, skb->protocol == htons(ETH_P_IPV6), h))
		return NEVER;
	if (l3 && LOAD(skb, 0, &eth))
		__builtin_memcpy(p->flow.mac, eth.h_dest, sizeof(p->flow.mac));
	remember_ports(h, in);
	set_flow(p, h);
	p->flow.in = in;
	p->flow.tos = h->tos;
	p->l3 = l3;
	p->l4 = h->l4;
	p->ttl = h->ttl;
	p->length = segment_length(skb, h);
	p->flags |= (h->ipv6 ? IPV6 : 0) | (h->has_ports ? PORTS : 0) | (h->options ? OPTIONS : 0) | (h->fragment ? FRAGMENT : 0);
	if (h->protocol == (h->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) && !h->later) {
		if (!LOAD(skb, h->l4, &type))
			return NEVER;
		if (h->ipv6 && is_neighbour(type))
			return NEVER;
		if (is_error(h->ipv6, type))
			return read_error(skb, g) ? PLAIN : NEVER;
	}
	p->check_at = checksum_at(h->protocol);
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

	if (!h->ipv6)
		bpf_l3_csum_replace(skb, h->l3 + __builtin_offsetof(struct iphdr, check), 0, (__u16)~htons(0x0100), 0);
	STORE(skb, h->l3 + (h->ipv6 ? __builtin_offsetof(struct ipv6hdr, hop_limit) : __builtin_offsetof(struct iphdr, ttl)), &ttl);
}

/* mend_checksum tells a transport's checksum what the addresses and the ports changed by. */
static __always_inline void mend_checksum(struct __sk_buff *skb, __u32 at, __u8 protocol, bool ipv6, __u16 addresses, __u16 ports)
{
	__u64 zero = protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;

	if (addresses)
		bpf_l4_csum_replace(skb, at, 0, addresses, BPF_F_PSEUDO_HDR | zero);
	if (ports)
		bpf_l4_csum_replace(skb, at, 0, ports, zero);
}

/* store_packet changes both ends of a packet. */
static __always_inline void store_packet(struct __sk_buff *skb, const struct general *g, const struct decision *d)
{
	const struct packet *p = &g->packet;
	struct ports ports = {d->sport, d->dport};

	store_addresses(skb, &g->outer, &d->src, &d->dst);
	if (g->outer.later || (g->outer.fragment && !g->outer.has_ports && has_ports(g->outer.protocol)))
		return; /* no transport header in here */
	if (p->flags & PORTS && d->ports_sum)
		STORE(skb, p->l4, &ports);
	if (p->check_at)
		mend_checksum(skb, p->l4 + p->check_at, p->flow.protocol, g->outer.ipv6, d->l4_sum, d->ports_sum);
}

/* store_error changes an ICMP error and the packet that it quotes, which has the ends the other way round. What the
 * quoted header and its checksum change by adds up to nothing; so do the ports and the transport's checksum, as far as
 * it is quoted, but for the addresses that it covers and that lie elsewhere. */
static __always_inline void store_error(struct __sk_buff *skb, const struct general *g, const struct decision *d)
{
	const struct header *q = &g->quoted;
	bool keeps = g->packet.flags & OWN || equal(&d->src, &g->packet.flow.src);
	struct address src = keeps ? g->outer.src : d->src;
	struct ports ports = {d->dport, d->sport};
	__u32 check_at = checksum_at(q->protocol);
	__u16 sum = 0, outer, check;

	outer = difference(words(&g->outer.src) + words(&g->outer.dst), words(&src) + words(&d->dst));
	store_addresses(skb, &g->outer, &src, &d->dst);
	store_addresses(skb, q, &d->dst, &d->src);
	if (q->ipv6)
		sum = d->l4_sum;
	if (!q->later && q->has_ports) {
		if (d->ports_sum)
			STORE(skb, q->l4, &ports);
		sum = csum_fold((__u64)sum + d->ports_sum);
	}
	if (!q->later && check_at && LOAD(skb, q->l4 + check_at, &check) && (check || q->protocol != IPPROTO_UDP)) {
		__u16 by = csum_fold((__u64)d->l4_sum + d->ports_sum), mended = changed(check, by);

		STORE(skb, q->l4 + check_at, &mended);
		sum = csum_fold((__u64)sum + mended + (__u16)~check);
	}
	if (sum)
		bpf_l4_csum_replace(skb, g->outer.l4 + 2, 0, sum, 0);
	if (q->ipv6 && outer)
		bpf_l4_csum_replace(skb, g->outer.l4 + 2, 0, outer, BPF_F_PSEUDO_HDR);
}

static __always_inline void store(struct __sk_buff *skb, const struct general *g, const struct decision *d)
{
	if (g->packet.flags & ERROR)
		store_error(skb, g, d);
	else
		store_packet(skb, g, d);
}
