/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Who a packet is from and to: what filters ask and events show. */
#pragma once

#include "skb.h"

enum {
	ETH_P_ARP = 0x0806,
	ETH_P_RARP = 0x8035,
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
 * What cannot be is 0. It has what filters of pcap-filter(7) look at: IPv6 extension
 * headers are not walked, but for one fragment header, behind which they find the
 * protocol and no ports; and a header is believed to be what the frame says that it
 * is, whatever its version field has. The layout is that of filter.Packet. */
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

/* What follows an IP header, as far as it is read. */
struct l4_start {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 doff, flags;
} __attribute__((packed));

/* parse_icmp reads type and code; left bytes of the packet are at hand. */
static __always_inline void parse_icmp(const unsigned char *at, __u32 left, struct flow *f)
{
	__u8 icmp[2] = {};

	if (left < sizeof(icmp) || bpf_probe_read_kernel(icmp, sizeof(icmp), at))
		return;
	f->icmp_type = icmp[0];
	f->icmp_code = icmp[1];
}

/* parse_ports reads ports, and TCP's flags where the packet goes as far. */
static __always_inline void parse_ports(const unsigned char *at, __u32 left, struct flow *f)
{
	struct l4_start l4 = {};

	if (left >= sizeof(l4)) {
		if (bpf_probe_read_kernel(&l4, sizeof(l4), at))
			return;
	} else if (left < 2 * sizeof(__be16) || bpf_probe_read_kernel(&l4, 2 * sizeof(__be16), at)) {
		return;
	}
	f->sport = ntohs(l4.sport);
	f->dport = ntohs(l4.dport);
	f->flags |= FLOW_PORTS;
	if (f->proto == IPPROTO_TCP)
		f->tcp_flags = l4.flags;
}

static __always_inline void parse_l4(const unsigned char *at, __u32 left, struct flow *f)
{
	switch (f->proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		parse_ports(at, left, f);
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		parse_icmp(at, left, f);
	}
}

static __always_inline void parse_ipv4(const unsigned char *at, __u32 left, struct flow *f)
{
	struct iphdr ip = {};
	__u32 ihl;

	if (left < sizeof(ip) || bpf_probe_read_kernel(&ip, sizeof(ip), at))
		return;
	f->saddr[0] = ip.saddr;
	f->daddr[0] = ip.daddr;
	f->flags |= FLOW_ADDRESSES;
	f->proto = ip.protocol;
	f->length = ntohs(ip.tot_len);
	f->ttl = ip.ttl;
	if (ip.frag_off & htons(0x1fff)) {
		f->flags |= FLOW_FRAGMENT;
		return;
	}
	ihl = (ip.version_ihl & 0x0f) * 4;
	if (ihl >= sizeof(ip) && ihl <= left)
		parse_l4(at + ihl, left - ihl, f);
}

static __always_inline void parse_ipv6(const unsigned char *at, __u32 left, struct flow *f)
{
	struct ipv6hdr ip = {};

	if (left < sizeof(ip) || bpf_probe_read_kernel(&ip, sizeof(ip), at))
		return;
	at += sizeof(ip);
	left -= sizeof(ip);
	__builtin_memcpy(f->saddr, ip.saddr, sizeof(f->saddr));
	__builtin_memcpy(f->daddr, ip.daddr, sizeof(f->daddr));
	f->flags |= FLOW_ADDRESSES;
	f->proto = ip.nexthdr;
	f->length = ntohs(ip.payload_len) + sizeof(ip);
	f->ttl = ip.hop_limit;
	if (f->proto != IPPROTO_FRAGMENT) {
		parse_l4(at, left, f);
		return;
	}
	f->flags |= FLOW_FRAGMENT;
	if (left)
		bpf_probe_read_kernel(&f->proto, sizeof(f->proto), at);
}

/* parse_arp takes the addresses of a request or an answer about IPv4 over Ethernet:
 * in others (InfiniBand's are longer) they lie elsewhere. RARP looks the same. */
static __always_inline void parse_arp(const unsigned char *at, __u32 left, struct flow *f)
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

	if (left < sizeof(arp) || bpf_probe_read_kernel(&arp, sizeof(arp), at))
		return;
	if (arp.protocol != htons(ETH_P_IP) || arp.hardware_len != 6 || arp.protocol_len != 4)
		return;
	__builtin_memcpy(&f->saddr[0], arp.sender, sizeof(arp.sender));
	__builtin_memcpy(&f->daddr[0], arp.target, sizeof(arp.target));
	f->flags |= FLOW_ADDRESSES;
}

/* parse_flow reads the packet at head + network_header up to head + tail, which are
 * the skb's of these names: beyond tail lies what an earlier packet left there.
 * protocol is skb->protocol. f must be all 0. */
static __always_inline void parse_flow(const unsigned char *head, __u16 network_header, __u32 tail, __be16 protocol,
				       struct flow *f)
{
	const unsigned char *at = head + network_header;
	__u32 left = tail > network_header ? tail - network_header : 0;

	f->l3 = ntohs(protocol);
	switch (f->l3) {
	case ETH_P_IP:
		parse_ipv4(at, left, f);
		break;
	case ETH_P_IPV6:
		parse_ipv6(at, left, f);
		break;
	case ETH_P_ARP:
	case ETH_P_RARP:
		parse_arp(at, left, f);
	}
}

/* flow_matches is the filter: its body is exchanged before loading (package
 * match), so that the compiler must not know what it returns. */
static __noinline int flow_matches(const struct flow *f)
{
	int matches = 1;

	asm volatile("" : "+r"(matches) : "r"(f) : "memory");
	return matches;
}
