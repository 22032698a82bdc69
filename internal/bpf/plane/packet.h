/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A packet as it comes: where it is from and to, and what has to be mended in it. */
#pragma once

#include "tables.h"

enum {
	IPPROTO_HOPOPTS = 0,
	IPPROTO_ICMP = 1,
	IPPROTO_DCCP = 33,
	IPPROTO_ROUTING = 43,
	IPPROTO_FRAGMENT = 44,
	IPPROTO_ICMPV6 = 58,
	IPPROTO_DSTOPTS = 60,
	IPPROTO_SCTP = 132,
	IPPROTO_MH = 135,
	IPPROTO_UDPLITE = 136,
};

/* struct flow is all that decides where packets go: those of one flow go one way. */
struct flow {
	struct address src, dst;
	__be16 sport, dport;
	__u32 in; /* ifindex */
	__u8 protocol;
	__u8 tos; /* IPv4's, or the traffic class; without ECN */
};

enum {
	DSCP = 0xfc,
};

enum {
	IPV6 = 1 << 0,
	PORTS = 1 << 1,      /* there are some, at l4 */
	LATER = 1 << 2,      /* a fragment without ports */
	OPTIONS = 1 << 3,    /* that routers look at */
	ERROR = 1 << 4,      /* an ICMP error: the flow is the inverse of what it quotes */
	FRAGMENT = 1 << 5,
	OWN = 1 << 6,        /* an ICMP error of this host: it keeps its source */
};

struct packet {
	struct flow flow;
	__u32 length;  /* of the IP packet; of one of its segments where it is several */
	__u16 l3, l4;  /* where the headers begin */
	__u8 check_at; /* behind l4: a checksum that covers the addresses; 0: there is none to mend */
	__u8 ttl;
	__u8 flags;
};

/* The ways of a packet after its headers were read. */
enum parsed {
	PLAIN,   /* all is read */
	UNUSUAL, /* read_any reads it */
	NEVER,   /* no packet that is translated */
};

static __always_inline void set_ipv4(struct address *a, __be32 ipv4)
{
	a->w[0] = 0;
	a->w[1] = 0;
	a->w[2] = htonl(0xffff);
	a->w[3] = ipv4;
}

static __always_inline void set_ipv6(struct address *a, const __be32 *ipv6)
{
	a->w[0] = ipv6[0];
	a->w[1] = ipv6[1];
	a->w[2] = ipv6[2];
	a->w[3] = ipv6[3];
}

static __always_inline bool equal(const struct address *a, const struct address *b)
{
	return a->w[3] == b->w[3] && a->w[2] == b->w[2] && a->w[1] == b->w[1] && a->w[0] == b->w[0];
}

/* has_ports: RFC 768, 793, 3828, 4340, 9260: the first four bytes. */
static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP ||
	       protocol == IPPROTO_UDPLITE || protocol == IPPROTO_DCCP;
}

/* is_extension reports whether a protocol is a header of IPv6 that another one follows (RFC 8200, 6275). */
static __always_inline bool is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_FRAGMENT ||
	       protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_MH;
}

static __always_inline bool is_icmp(bool ipv6, __u8 protocol)
{
	return protocol == (ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
}

/* checksum_at is where a protocol has a checksum over a pseudo header. */
static __always_inline __u8 checksum_at(bool ipv6, __u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return 16;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_DCCP:
		return 6;
	case IPPROTO_ICMPV6:
		return ipv6 ? 2 : 0;
	}
	return 0;
}

/* needs is how much of a transport has to be there, to be understood and mended. */
static __always_inline __u32 needs(bool ipv6, __u8 protocol)
{
	if (protocol == IPPROTO_TCP)
		return 18;
	if (protocol == IPPROTO_SCTP || is_icmp(ipv6, protocol))
		return 4;
	return has_ports(protocol) ? 8 : 0;
}

/* is_error reports whether a type of ICMP quotes the packet that it is about. */
static __always_inline bool is_error(bool ipv6, __u8 type)
{
	if (ipv6)
		return type >= 1 && type <= 4; /* RFC 4443 */
	return type == 3 || type == 11 || type == 12; /* unreachable, time exceeded, parameter problem */
}

/* stays reports whether routers have nothing to forward in a type of ICMP: neighbour discovery and redirects (RFC 4861);
 * of IPv4, source quench (RFC 6633) and redirects. */
static __always_inline bool stays(bool ipv6, __u8 type)
{
	return ipv6 ? type >= 133 && type <= 137 : type == 4 || type == 5;
}

/* is_unroutable reports whether an address is none that routers forward from or to, such as one of IPv4 in IPv6. */
static __always_inline bool is_unroutable(const struct address *a, bool ipv6)
{
	if (ipv6)
		return (a->w[0] & htonl(0xff000000)) == htonl(0xff000000) || (a->w[0] & htonl(0xffc00000)) == htonl(0xfe800000) ||
		       (!a->w[0] && !a->w[1] && (a->w[2] == htonl(0xffff) || (!a->w[2] && !(a->w[3] & htonl(0xfffffffe)))));
	return (a->w[3] & htonl(0xff000000)) == 0 || (a->w[3] & htonl(0xff000000)) == htonl(0x7f000000) ||
	       (a->w[3] & htonl(0xe0000000)) == htonl(0xe0000000);
}

static __always_inline enum parsed read_l4(const void *l4, const void *end, struct packet *p)
{
	bool ipv6 = p->flags & IPV6;
	__u8 protocol = p->flow.protocol;
	const struct udphdr *udp = l4;
	const __u8 *type = l4;
	const __be16 *ports = l4;

	if ((void *)(ports + 2) > end || p->length < p->l4 - p->l3 + needs(ipv6, protocol))
		return UNUSUAL;
	if (is_icmp(ipv6, protocol)) {
		if (is_error(ipv6, *type))
			return UNUSUAL;
		if (stays(ipv6, *type))
			return NEVER;
	}
	if (has_ports(protocol)) {
		p->flow.sport = ports[0];
		p->flow.dport = ports[1];
		p->flags |= PORTS;
	}
	p->check_at = checksum_at(ipv6, protocol);
	if (protocol == IPPROTO_UDP) {
		if ((void *)(udp + 1) > end)
			return UNUSUAL;
		if (!udp->check)
			p->check_at = 0; /* RFC 768, 6935 */
	}
	return PLAIN;
}

static __always_inline enum parsed read_ipv4(const void *l3, const void *end, struct packet *p)
{
	const struct iphdr *ip = l3;

	if ((void *)(ip + 1) > end)
		return UNUSUAL;
	if (ip->version_ihl != 0x45 || ip->frag_off & htons(0x3fff))
		return UNUSUAL;
	set_ipv4(&p->flow.src, ip->saddr);
	set_ipv4(&p->flow.dst, ip->daddr);
	p->flow.protocol = ip->protocol;
	p->flow.tos = ip->tos & DSCP;
	p->ttl = ip->ttl;
	p->length = ntohs(ip->tot_len);
	p->l4 = p->l3 + sizeof(*ip);
	return read_l4(ip + 1, end, p);
}

static __always_inline enum parsed read_ipv6(const void *l3, const void *end, struct packet *p)
{
	const struct ipv6hdr *ip = l3;

	if ((void *)(ip + 1) > end)
		return UNUSUAL;
	if ((ip->version_class_flow & htonl(0xf0000000)) != htonl(6u << 28) || is_extension(ip->nexthdr))
		return UNUSUAL;
	set_ipv6(&p->flow.src, ip->saddr);
	set_ipv6(&p->flow.dst, ip->daddr);
	p->flow.protocol = ip->nexthdr;
	p->flow.tos = ntohl(ip->version_class_flow) >> 20 & DSCP;
	p->ttl = ip->hop_limit;
	p->length = ntohs(ip->payload_len) + sizeof(*ip);
	p->l4 = p->l3 + sizeof(*ip);
	p->flags = IPV6;
	return read_l4(ip + 1, end, p);
}

/* read_plain reads headers that have nothing unusual: no options, extension headers or fragments, no ICMP errors.
 * l3 is where the IP header begins: behind that of Ethernet, or at 0. p is all 0. */
static __always_inline enum parsed read_plain(const void *data, const void *end, __u32 l3, __u16 protocol, struct packet *p)
{
	const struct ethhdr *eth = data;

	p->l3 = l3;
	if (l3) {
		if ((void *)(eth + 1) > end)
			return NEVER;
		protocol = eth->h_proto;
	}
	if (protocol == htons(ETH_P_IP))
		return read_ipv4(data + l3, end, p);
	if (protocol == htons(ETH_P_IPV6))
		return read_ipv6(data + l3, end, p);
	return NEVER;
}
