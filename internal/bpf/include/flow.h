/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Who a packet is from and to: what filters ask and events show. */
#pragma once

#include "skb.h"

enum {
	ETH_P_ARP = 0x0806,
	IPPROTO_ICMP = 1,
	IPPROTO_FRAGMENT = 44,
	IPPROTO_ICMPV6 = 58,
	IPPROTO_SCTP = 132,
};

enum {
	FLOW_ADDRESSES = 1 << 0, /* saddr and daddr are there */
	FLOW_PORTS = 1 << 1,     /* sport and dport are there */
	FLOW_FRAGMENT = 1 << 2,  /* an IPv4 fragment but the first, or any IPv6 one */
};

/* struct flow is what can be read of a packet, in host order but for addresses.
 * What cannot be is 0. IPv6 extension headers are not walked, but for one fragment
 * header: as filters of pcap-filter(7) do. */
struct flow {
	__be32 saddr[4]; /* IPv4 and ARP: the first word */
	__be32 daddr[4];
	__u16 sport;
	__u16 dport;
	__u16 l3;     /* skb->protocol: ETH_P_IP, ETH_P_IPV6, ETH_P_ARP, … */
	__u16 length; /* of the IP packet, header included, as it says itself */
	__u8 proto;   /* IPPROTO_… */
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 icmp_code;
	__u8 flags; /* FLOW_… */
	__u8 ttl;
	__u16 pad;
};

/* parse_ports reads what follows the IP header. */
static __always_inline void parse_ports(const unsigned char *at, struct flow *f)
{
	struct {
		__be16 sport, dport;
		__be32 seq, ack;
		__u8 doff, flags;
	} __attribute__((packed)) l4 = {};

	if (bpf_probe_read_kernel(&l4, sizeof(l4), at))
		return;
	switch (f->proto) {
	case IPPROTO_TCP:
		f->tcp_flags = l4.flags;
		/* fallthrough */
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		f->sport = ntohs(l4.sport);
		f->dport = ntohs(l4.dport);
		f->flags |= FLOW_PORTS;
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		f->icmp_type = ntohs(l4.sport) >> 8;
		f->icmp_code = ntohs(l4.sport) & 0xff;
	}
}

static __always_inline void parse_ipv4(const unsigned char *at, const struct iphdr *ip, struct flow *f)
{
	__u32 ihl = (ip->version_ihl & 0x0f) * 4;

	if (ip->version_ihl >> 4 != 4 || ihl < sizeof(*ip))
		return;
	f->saddr[0] = ip->saddr;
	f->daddr[0] = ip->daddr;
	f->flags |= FLOW_ADDRESSES;
	f->proto = ip->protocol;
	f->length = ntohs(ip->tot_len);
	f->ttl = ip->ttl;
	if (ip->frag_off & htons(0x1fff)) {
		f->flags |= FLOW_FRAGMENT;
		return;
	}
	parse_ports(at + ihl, f);
}

static __always_inline void parse_ipv6(const unsigned char *at, const struct ipv6hdr *ip, struct flow *f)
{
	if (*(const __u8 *)ip >> 4 != 6)
		return;
	__builtin_memcpy(f->saddr, ip->saddr, sizeof(f->saddr));
	__builtin_memcpy(f->daddr, ip->daddr, sizeof(f->daddr));
	f->flags |= FLOW_ADDRESSES;
	f->proto = ip->nexthdr;
	f->length = ntohs(ip->payload_len) + sizeof(*ip);
	f->ttl = ip->hop_limit;
	if (f->proto == IPPROTO_FRAGMENT) {
		f->flags |= FLOW_FRAGMENT;
		bpf_probe_read_kernel(&f->proto, sizeof(f->proto), at + sizeof(*ip));
		return;
	}
	parse_ports(at + sizeof(*ip), f);
}

/* parse_arp takes the addresses of a request or an answer about IPv4. */
static __always_inline void parse_arp(const unsigned char *at, struct flow *f)
{
	struct {
		__be16 hardware, protocol;
		__u8 hardware_len, protocol_len;
		__be16 operation;
		__u8 sender_mac[6];
		__u8 sender[4];
		__u8 target_mac[6];
		__u8 target[4];
	} __attribute__((packed)) arp = {};

	if (bpf_probe_read_kernel(&arp, sizeof(arp), at) || arp.protocol != htons(ETH_P_IP) || arp.hardware_len != 6)
		return;
	__builtin_memcpy(&f->saddr[0], arp.sender, sizeof(arp.sender));
	__builtin_memcpy(&f->daddr[0], arp.target, sizeof(arp.target));
	f->flags |= FLOW_ADDRESSES;
}

/* parse_flow reads the packet at head + network_header; protocol is skb->protocol.
 * f must be all 0. */
static __always_inline void parse_flow(const unsigned char *head, __u16 network_header, __be16 protocol, struct flow *f)
{
	const unsigned char *at = head + network_header;
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip = {};

	f->l3 = ntohs(protocol);
	if (f->l3 == ETH_P_ARP) {
		parse_arp(at, f);
		return;
	}
	if (f->l3 != ETH_P_IP && f->l3 != ETH_P_IPV6)
		return;
	/* Behind a packet's last byte its skb has more, so a short one can be read. */
	if (bpf_probe_read_kernel(&ip, sizeof(ip), at))
		return;
	if (f->l3 == ETH_P_IP)
		parse_ipv4(at, &ip.v4, f);
	else
		parse_ipv6(at, &ip.v6, f);
}

/* flow_matches is the filter: its body is exchanged before loading (package
 * match), so that the compiler must not know what it returns. */
static __attribute__((noinline)) int flow_matches(const struct flow *f)
{
	int matches = 1;

	asm volatile("" : "+r"(matches) : "r"(f) : "memory");
	return matches;
}
