/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* TCP segments as the client and the responder exchange them: a SYN and its answer with
 * one option, the maximum segment size, and all others without options, empty or with a
 * token and nothing else. That is all a connection needs, and all that is understood. */
#pragma once

#include "../include/csum.h"
#include "pktgen.h"

enum {
	FRAME_LEAST = 60,       /* of Ethernet, without FCS */
	SEGMENT_WINDOW = 65535, /* never scaled */
	TTL = 64,
	DATA = sizeof(struct token),
};

/* Key of the numbers that connections begin with: nobody who does not see the packets
 * can answer them. */
const volatile __u64 key[2];

static __always_inline __u64 absorb(__u64 h, __u64 word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15ULL;
	return h ^ h >> 32;
}

/* keyed makes a number of a flow's address, or both of its addresses, and ports. */
static __always_inline __u32 keyed(bool v6, const __be32 *a, const __be32 *b, __u32 ports)
{
	__u64 h = absorb(key[0], (__u64)a[0] << 32 | b[0]);

	if (v6)
#pragma unroll
		for (int i = 1; i < 4; i++)
			h = absorb(h, (__u64)a[i] << 32 | b[i]);
	return absorb(absorb(h, ports), key[1]) >> 32;
}

/* segment is a received one. It is a copy, since the answer is written over it. */
struct segment {
	bool v6; /* a constant in each program */
	bool data;
	bool sound;   /* its checksums are right */
	bool partial; /* TCP's is that of the pseudo header alone: a kernel leaves the rest to a network card */
	__u8 flags;
	__be16 sport, dport;
	__u32 seq, ack;
	__be32 saddr[4], daddr[4];
	struct token token; /* with data */
};

static __always_inline void copy_addresses(struct segment *s, const struct frame *f)
{
	for (int i = 0; i < (s->v6 ? 4 : 1); i++) {
		s->saddr[i] = f->saddr[i];
		s->daddr[i] = f->daddr[i];
	}
}

/* parse_body finds what is behind the header, and gives the sum of it; -1 for a segment of
 * another shape. */
static __always_inline __s64 parse_body(struct segment *s, const struct frame *f, void *end)
{
	const struct tcphdr *tcp = f->l4;
	const __u32 *body = (void *)(tcp + 1);
	__u32 behind = f->transport - sizeof(*tcp);
	__u8 words = tcp->doff_res >> 4;

	if (words == 5 && !behind)
		return 0;
	if (words == 6 && behind == 4 && s->flags & TCP_SYN && (void *)(body + 1) <= end)
		return body[0];
	if (words == 5 && behind == DATA && !(s->flags & TCP_SYN) && (void *)(body + 3) <= end) {
		s->data = true;
		s->token = *(struct token *)body;
		return sum_words(0, body, 3);
	}
	return -1;
}

/* checksum_ok takes a partial one of a reset: it is a kernel's that refuses a connection,
 * and on a veth there is no network card to complete it. */
static __always_inline bool checksum_ok(const struct segment *s, const struct tcphdr *tcp, __u64 body, __u64 pseudo)
{
	return csum_ok(sum_words(body, (void *)tcp, sizeof(*tcp) / 4) + pseudo) || (s->flags & TCP_RST && s->partial);
}

/* parse_segment is 0 for a segment that may be answered, in an untagged frame. */
static __always_inline int parse_segment(struct segment *s, struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame f = { .v6 = s->v6, .proto = IPPROTO_TCP };
	struct tcphdr *tcp;
	__u64 pseudo;
	__s64 sum;

	if (parse_ip(&f, data, end) || f.l3 != data + sizeof(struct ethhdr))
		return -1;
	tcp = f.l4;
	if ((void *)(tcp + 1) > end || f.transport < sizeof(*tcp))
		return -1;
	s->flags = tcp->flags;
	sum = parse_body(s, &f, end);
	if (sum < 0)
		return -1;
	pseudo = pseudo_header(&f);
	s->partial = tcp->check == csum_fold(pseudo);
	s->sound = checksum_ok(s, tcp, sum, pseudo) && (s->v6 || csum_ok(sum_words(0, f.l3, sizeof(struct iphdr) / 4)));
	s->sport = tcp->source;
	s->dport = tcp->dest;
	s->seq = ntohl(tcp->seq);
	s->ack = ntohl(tcp->ack_seq);
	copy_addresses(s, &f);
	return 0;
}

/* outgoing is a segment to write. */
struct outgoing {
	bool v6;
	bool syn;                  /* a constant, as it gives the length */
	const struct token *token; /* constantly null where there is none */
	__u8 flags;
	__be16 sport, dport;
	__u32 seq, ack;
	const __be32 *saddr, *daddr;
};

static __always_inline __u32 transport_length(const struct outgoing *o)
{
	return sizeof(struct tcphdr) + (o->syn ? 4 : 0) + (o->token ? DATA : 0);
}

static __always_inline __u32 ip_length(const struct outgoing *o)
{
	return o->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

static __always_inline __u32 frame_length(const struct outgoing *o)
{
	__u32 length = sizeof(struct ethhdr) + ip_length(o) + transport_length(o);

	return length < FRAME_LEAST ? FRAME_LEAST : length;
}

static __always_inline void write_ipv4(struct iphdr *ip, const struct outgoing *o, __u64 addresses)
{
	const __be32 first = htonl(0x45u << 24 | (sizeof(*ip) + transport_length(o)));
	const __be32 second = htonl(0x4000), third = htonl(TTL << 24 | IPPROTO_TCP << 16); /* not to be fragmented */
	__be32 *word = (void *)ip;

	word[0] = first;
	word[1] = second;
	word[2] = third;
	ip->check = ~csum_fold((__u64)first + second + third + addresses);
	ip->saddr = o->saddr[0];
	ip->daddr = o->daddr[0];
}

static __always_inline void write_ipv6(struct ipv6hdr *ip, const struct outgoing *o)
{
	__be32 *word = (void *)ip;

	word[0] = htonl(6u << 28);
	word[1] = htonl(transport_length(o) << 16 | IPPROTO_TCP << 8 | TTL);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		ip->saddr[i] = o->saddr[i];
		ip->daddr[i] = o->daddr[i];
	}
}

/* write_tcp writes the header and what is behind it; sum is that of the pseudo header. */
static __always_inline void write_tcp(struct tcphdr *tcp, const struct outgoing *o, __u64 sum)
{
	const __u16 mss = o->v6 ? 1440 : 1460;
	const __be16 words = htons((o->syn ? 6 : 5) << 12 | o->flags);
	__u32 *body = (void *)(tcp + 1);

	tcp->source = o->sport;
	tcp->dest = o->dport;
	tcp->seq = htonl(o->seq);
	tcp->ack_seq = htonl(o->ack);
	*(__be16 *)&tcp->doff_res = words;
	tcp->window = htons(SEGMENT_WINDOW);
	tcp->urg_ptr = 0;
	sum += o->sport + o->dport + (__u64)tcp->seq + tcp->ack_seq + words + htons(SEGMENT_WINDOW);
	if (o->syn) {
		body[0] = htonl(2 << 24 | 4 << 16 | mss);
		sum += body[0];
	}
	if (o->token) {
		*(struct token *)body = *o->token;
		sum = sum_words(sum, body, 3);
	}
	tcp->check = ~csum_fold(sum);
}

/* write_segment writes a frame of frame_length, but for the Ethernet addresses; -1 where
 * it has no room. */
static __always_inline int write_segment(struct xdp_md *ctx, const struct outgoing *o)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const __u32 used = sizeof(struct ethhdr) + ip_length(o) + transport_length(o);
	struct ethhdr *eth = data;
	__u64 addresses = 0;

	if (data + frame_length(o) > end)
		return -1;
	for (int i = 0; i < (o->v6 ? 4 : 1); i++)
		addresses += (__u64)o->saddr[i] + o->daddr[i];
	eth->h_proto = o->v6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP);
	if (o->v6)
		write_ipv6(data + sizeof(*eth), o);
	else
		write_ipv4(data + sizeof(*eth), o, addresses);
	write_tcp(data + sizeof(*eth) + ip_length(o), o, addresses + htons(IPPROTO_TCP) + htons(transport_length(o)));
#pragma unroll
	for (__u32 i = 0; i < 6; i += 2) /* padding has nothing of the frame before */
		if (used + i < FRAME_LEAST)
			*(__u16 *)(data + used + i) = 0;
	return 0;
}

/* answer turns the received frame into the answer to it, and sends it back. It is aborted
 * where the frame's buffer has no room for that, as a copy by the kernel may be. */
static __always_inline int answer(struct xdp_md *ctx, const struct segment *s, __u32 seq, __u32 ack, __u8 flags, bool syn,
				  const struct token *token)
{
	const struct outgoing o = {
		.v6 = s->v6, .syn = syn, .token = token, .flags = flags, .sport = s->dport, .dport = s->sport,
		.seq = seq, .ack = ack, .saddr = s->daddr, .daddr = s->saddr,
	};
	int longer = (int)frame_length(&o) - (int)(ctx->data_end - ctx->data);
	__u16 *half, swap;

	if (longer && bpf_xdp_adjust_tail(ctx, longer))
		return XDP_ABORTED;
	if (write_segment(ctx, &o))
		return XDP_ABORTED;
	half = (void *)(long)ctx->data;
	if ((void *)(half + 6) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		swap = half[i];
		half[i] = half[i + 3];
		half[i + 3] = swap;
	}
	return XDP_TX;
}
